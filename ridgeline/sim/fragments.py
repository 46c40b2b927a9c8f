"""How ways to hand out cache memory spend it under one workload: what is used, what is handed out and empty,
what is free in pieces too small, and how many requests fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.base.trace import Record, StepRecord
from ridgeline.kv.interface import Manager
from ridgeline.sim.node import Machine, Node, Serving
from ridgeline.sim.run import Clients
from ridgeline.workload.offered import Workload

SHARE = 0.25


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


class _Sampler:
    """A trace that looks at the cache's memory after each step."""

    def __init__(self) -> None:
        self.manager: Manager | None = None
        self.seconds = 0.0
        self.sums = dict.fromkeys(("used", "internal", "external", "free", "residents"), 0.0)
        self.most = 0

    def add(self, record: Record) -> None:
        if not isinstance(record, StepRecord) or self.manager is None:
            return
        now, took_s = self.manager.fragmentation(), record.measured_s
        self.seconds += took_s
        self.most = max(self.most, now.num_residents)
        for name, value in (("used", now.used_bytes), ("internal", now.internal_bytes),
                            ("external", now.external_bytes), ("free", now.free_bytes - now.external_bytes)):
            self.sums[name] += took_s * value / now.capacity_bytes
        self.sums["residents"] += took_s * now.num_residents

    def close(self) -> None:
        """Nothing is held."""


def memory_use(name: str, machine: Machine, serving: Serving, workload: Workload) -> MemoryUse:
    """One engine under a workload."""
    sampler = _Sampler()
    node = Node(machine, serving, sampler)
    sampler.manager = node.manager
    Clients(node, workload, machine.capacity.vocab_size).run()
    mean = {of: value / sampler.seconds if sampler.seconds else 0.0 for of, value in sampler.sums.items()}
    return MemoryUse(name=name, used=mean["used"], internal=mean["internal"], external=mean["external"],
                     free=mean["free"], mean_residents=mean["residents"], most_residents=sampler.most)


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
