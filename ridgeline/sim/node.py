"""One simulated engine: the live scheduler, KV manager and loop over a ledger's price, on a clock of its own.

A driver of one or of many nodes keeps time: it asks when a node has something to do, lets it go on until then
and hands it requests. As in the live engine, what arrives while a step runs is seen when the loop comes
round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol, cast, runtime_checkable

import numpy as np

from ridgeline.base.clock import VirtualClock
from ridgeline.base.errors import ConfigError
from ridgeline.base.trace import Trace
from ridgeline.kv.contiguous import ContiguousManager
from ridgeline.kv.interface import Manager
from ridgeline.kv.manager import KVManager
from ridgeline.ledger.steps import StepSeconds
from ridgeline.schedule.course import Leap
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.plan import StepPlan
from ridgeline.schedule.policies.policy import Needs
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.pressure import NO_PRESSURE, Pressure
from ridgeline.schedule.request import NewRequest, Output
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.schedule.speculate import Shape
from ridgeline.schedule.targets import NO_TARGETS, Targets
from ridgeline.sim.executor import LedgerExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What an engine runs on. seconds: of its steps; floor: the least that they could take. max_in_flight:
    steps begun at once, as live. num_devices and their price: for what is said per device and per dollar.
    cache_bytes: of a sequence of so many tokens; link_bytes_per_s: at which all devices together hand caches
    on, in one direction. page_s: of a page to host memory or back. waking: what a step of so many seconds
    takes longer after a pause.
    """

    name: str
    capacity: Capacity
    seconds: StepSeconds
    floor: StepSeconds
    max_in_flight: int = 2
    num_devices: int = 1
    price_usd_per_hour: float | None = None
    cache_bytes: Callable[[int], float] = lambda num_tokens: 0.0
    link_bytes_per_s: float = inf
    page_s: float = 0.0
    waking: Callable[[float], float] = lambda seconds: 0.0

    def pressure(self) -> Pressure:
        """What preemption costs here: computing again by the ledger's floor, or copying there and back."""
        if not self.capacity.num_host_pages:
            return NO_PRESSURE
        page_bytes, floor = self.capacity.layout.page_bytes, self.floor

        def recompute_s(num_tokens: int) -> float:
            return floor(Shape(start=np.zeros(1, np.int64), count=np.array([num_tokens]), num_sampled=1))

        return Pressure(recompute_s=recompute_s,
                        swap_s=lambda num_bytes: 2 * num_bytes / page_bytes * self.page_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How an engine serves: "policy" or "policy:setting", what it promises, and the cache's bookkeeping: in
    pages, or "contiguous" with room for reserve_tokens in each sequence's run (None: for its own prompt and
    answer)."""

    policy: str = "fcfs"
    targets: Targets = NO_TARGETS
    prefix_caching: bool = True
    kv: str = "paged"
    reserve_tokens: int | None = None

    @property
    def batch_holds(self) -> bool:
        """Whether slots stay taken until their batch has ended, as in static batching."""
        return self.policy == "static"

    def manager(self, capacity: Capacity) -> Manager:
        """The cache's bookkeeping."""
        if self.kv == "contiguous":
            if capacity.num_host_pages:
                raise ConfigError("contiguous memory has nothing in host memory: leave --host-kv-bytes out")
            return ContiguousManager(capacity.layout, capacity.num_pages, reserve_tokens=self.reserve_tokens)
        return KVManager(capacity.layout, capacity.num_pages, prefix_caching=self.prefix_caching,
                         num_host_pages=capacity.num_host_pages)


@runtime_checkable
class Leaps(Trace, Protocol):
    """A trace that also takes steps in which nothing changed, many at once."""

    def leapt(self, leap: Leap) -> None: ...


@runtime_checkable
class Plans(Trace, Protocol):
    """A trace that is also told of each step's plan, which has its rows, as it begins."""

    def planned(self, plan: StepPlan) -> None: ...


class Node:
    """Scheduler, loop, executor and virtual clock. trace: takes the records of its steps and requests; one
    that takes leaps too is not told one by one of steps in which nothing changes."""

    def __init__(self, machine: Machine, serving: Serving, trace: Trace | Leaps | None = None) -> None:
        self.machine = machine
        self.clock = VirtualClock()
        capacity = machine.capacity
        self._executor = executor = LedgerExecutor(
            capacity, machine.seconds, machine.max_in_flight,
            seen=trace.planned if isinstance(trace, Plans) else lambda plan: None, page_s=machine.page_s,
            waking=machine.waking)
        self.manager = serving.manager(capacity)
        policy = make_policy(serving.policy, Needs(targets=serving.targets, price=machine.seconds))
        scheduler = Scheduler(capacity, self.manager, policy, max_num_batched_tokens=capacity.max_step_tokens,
                              max_num_seqs=capacity.num_rows, pressure=machine.pressure())
        self.max_request_tokens = scheduler.max_request_tokens
        self.loop = Loop(scheduler, executor, self.clock, trace)
        self._leaps = trace if isinstance(trace, Leaps) else None
        self._waits = False  # for a step: the loop comes round when it ends
        self._stalled = False  # all that is left waits for pages that are leased
        self._now_s = self.clock.now()  # the driver's; the clock may stand at the end of the step that runs

    def add(self, new: NewRequest) -> None:
        """A request, now: the driver has brought the node to its arrival. RequestError when it can never
        run."""
        self._stalled = False
        self.loop.add(new, self._now_s)

    def abort(self, request_id: str) -> None:
        """A client went away, now."""
        self._stalled = False
        self.loop.abort(request_id)

    def acknowledge(self, request_id: str) -> None:
        """A cache that it leased has arrived elsewhere, now."""
        self._stalled = False
        self.loop.acknowledge(request_id)

    def next_event_at(self) -> float | None:
        """When the node has something to do, None while it is idle."""
        if self._waits:
            return self.loop.next_ready_at()
        return self.clock.now() if self.loop.has_work() and not self._stalled else None

    def advance(self, until_s: float, quiet_s: float = 0.0) -> list[Output]:
        """Everything that happens up to this moment; the news. quiet_s: see `Loop.leap`."""
        news: list[Output] = []
        while True:
            if not self._waits:
                self.loop.launch()
                self._waits = self.loop.next_ready_at() is not None
            ready_s = self.loop.next_ready_at()
            if ready_s is None:
                news += self.loop.collect()  # of aborts
                self._stalled = self.loop.has_work()
                break
            if ready_s > until_s:
                break
            leap = None
            if self._leaps is not None and self._executor.free_at_s <= until_s:
                leap = self.loop.leap(self._executor, until_s, quiet_s)
            if leap is not None and self._leaps is not None:
                self.clock.advance_to(float(leap.finished_s[-1]))
                self._leaps.leapt(leap)
                news += leap.news
                if self.clock.now() > until_s:
                    self._waits = False
                    break
                self._waits = self.loop.next_ready_at() is not None
                continue
            self.clock.advance_to(ready_s)
            news += self.loop.collect()
            self._waits = False
        if until_s < float("inf"):
            self._now_s = until_s
            self.clock.advance_to(max(self.clock.now(), until_s))
        return news


def host_traffic(nodes: Sequence[Node]) -> dict[str, float]:
    """What all of them sent to host memory and had back: preemptions by swap, prompt tokens found there,
    pages each way, and the seconds that the copies took in steps; {} where there is no host memory for it."""
    found = {"swaps": 0.0, "hit_tokens": 0.0, "out_pages": 0.0, "back_pages": 0.0, "copy_s": 0.0}
    if not any(node.machine.capacity.num_host_pages for node in nodes):
        return {}
    for node in nodes:
        counts, stats = node.loop.stats(), node.manager.stats
        found["swaps"] += cast(int, counts["num_swaps"])
        found["hit_tokens"] += stats.num_host_hit_tokens
        found["out_pages"] += stats.num_out_pages
        found["back_pages"] += stats.num_back_pages
        found["copy_s"] += (stats.num_out_pages + stats.num_back_pages) * node.machine.page_s
    return found
