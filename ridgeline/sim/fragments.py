"""How ways to hand out cache memory spend it under one workload: what is used, what is handed out and empty,
what is free in pieces too small, and how many requests fit."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.base.errors import RequestError
from ridgeline.sim.node import Machine, Node, Serving
from ridgeline.sim.outcome import Meter
from ridgeline.sim.run import request_of
from ridgeline.workload.offered import Workload

SHARE = 0.25
LOOK = 64  # steps of one decode, as their floor says: some twenty of a full machine's


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Shares of the cache, on average over the time of steps: computed tokens, room handed out and empty,
    free room outside the largest free run, and the rest of what is free. most_residents: requests that hold
    memory at once."""

    name: str
    used: float
    internal: float
    external: float
    free: float
    mean_residents: float
    most_residents: int


def memory_use(name: str, machine: Machine, serving: Serving, workload: Workload) -> MemoryUse:
    """One engine under a workload that is all there at once. The memory is looked at every LOOK decode steps,
    so that steps in between can be leapt over."""
    meter = Meter(machine.capacity.num_pages)
    node = Node(machine, serving, meter)
    for number, offered in enumerate(workload.requests):
        with suppress(RequestError):
            node.add(request_of(offered, number, machine.capacity.vocab_size))
    look_s, now, num_looks = LOOK * float(machine.floor.decodes(np.ones(1, np.int64), 1)[0]), 0.0, 0
    sums = dict.fromkeys(("used", "internal", "external", "free", "residents"), 0.0)
    while node.next_event_at() is not None:
        now += look_s
        node.advance(now)
        seen, num_looks = node.manager.fragmentation(), num_looks + 1
        for of, value in (("used", seen.used_bytes), ("internal", seen.internal_bytes),
                          ("external", seen.external_bytes), ("free", seen.free_bytes - seen.external_bytes)):
            sums[of] += value / seen.capacity_bytes
        sums["residents"] += seen.num_residents
    mean = {of: value / max(num_looks, 1) for of, value in sums.items()}
    return MemoryUse(name=name, used=mean["used"], internal=mean["internal"], external=mean["external"],
                     free=mean["free"], mean_residents=mean["residents"], most_residents=meter.most_residents)


def compare_memory(machine: Machine, serving: Serving, workload: Workload) -> Sequence[MemoryUse]:
    """Runs for the longest request, runs for each one's own length (which nobody knows beforehand), and
    pages. Everything is asked for at once, of a cache that holds SHARE of it, so that memory decides; first
    come, first served, since no policy hands out memory, and in few steps."""
    requests = [replace(one, arrived_s=0.0, patience_s=None) for one in workload.requests]
    burst = replace(workload, requests=requests, num_at_a_time=None)
    lengths, capacity = [one.num_prompt + one.num_output for one in requests], machine.capacity
    longest, pages = max(lengths), capacity.layout.pages_for
    enough = max(int(SHARE * sum(map(pages, lengths))), 2 * pages(longest)) + 1
    machine = replace(machine, capacity=replace(capacity, num_pages=min(enough, capacity.num_pages),
                                                num_host_pages=0))
    serving = replace(serving, policy="fcfs")
    ways = {"contiguous, for the longest": replace(serving, kv="contiguous", reserve_tokens=longest),
            "contiguous, for its own": replace(serving, kv="contiguous", reserve_tokens=None),
            "pages": replace(serving, kv="paged", reserve_tokens=None)}
    return [memory_use(name, machine, one, burst) for name, one in ways.items()]
