"""A workload against one engine, or against many that look like one, in virtual time.

Clients come when the workload says, or, a fixed number at a time, when another has its answer; they go away
when their patience ends.
"""

import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.base.errors import ConfigError, RequestError
from ridgeline.base.trace import StepRecord
from ridgeline.schedule.course import Leap
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.request import NewRequest, Output
from ridgeline.schedule.speculate import Shape
from ridgeline.schedule.targets import Targets
from ridgeline.sim.node import Machine, Node, Serving, host_traffic
from ridgeline.sim.outcome import Meter, Outcome, outcome_of
from ridgeline.spec.sampling import SamplingParams
from ridgeline.workload.offered import Offered, Workload

Progress = Callable[[int, float], object]  # requests begun, virtual seconds
_BLOCK_STEP, _TOKEN_STEP = 0x9E3779B1, 0x85EBCA77  # odd: distinct places get distinct token ids


class Front(Protocol):
    """What serves a workload: a node, or a cluster of them."""

    def add(self, new: NewRequest) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def next_event_at(self) -> float | None: ...

    def advance(self, until_s: float, quiet_s: float = 0.0) -> list[Output]: ...


def prompt_of(offered: Offered, number: int, vocab_size: int) -> NDArray[np.int32]:
    """Token ids: those of shared blocks follow from the blocks' ids, all others from the request's number."""
    mixed = np.arange(offered.num_prompt, dtype=np.int64) * _TOKEN_STEP
    own = (number + 1) * _BLOCK_STEP
    if offered.prefix:
        shared = np.repeat(np.array(offered.prefix, np.int64), offered.block_tokens)[:offered.num_prompt]
        mixed[:len(shared)] += (-1 - shared) * _BLOCK_STEP
        mixed[len(shared):] += own
    else:
        mixed += own
    return ((mixed ^ (mixed >> 15)).view(np.uint64) % np.uint64(vocab_size)).astype(np.int32)


@cache
def _exactly(num_tokens: int) -> SamplingParams:
    """Of a text that no token ends. That nothing else does is not said: of real requests nobody knows it."""
    return SamplingParams(max_tokens=num_tokens)


def request_of(offered: Offered, number: int, vocab_size: int) -> NewRequest:
    """As a client sends it: exactly num_output tokens. Without a shared prefix it shares nothing."""
    return NewRequest(
        id=str(number), prompt=prompt_of(offered, number, vocab_size), priority=offered.priority,
        params=_exactly(offered.num_output),
        cache_salt="" if offered.prefix else str(number), tenant=offered.tenant, arrived_s=offered.arrived_s,
        predicted_output=offered.predicted_output)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """A run keeps much and makes no cycles, so that looking for them again and again finds nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Clients:
    """Sends a workload to a front and counts what it refuses."""

    def __init__(self, front: Front, workload: Workload, vocab_size: int,
                 progress: Progress = lambda begun, now: None) -> None:
        self._front = front
        self._requests = workload.requests
        self._vocab_size = vocab_size
        self._progress = progress
        self._next = 0
        self._leaving: list[tuple[float, str]] = []  # by the time at which patience ends
        self.num_refused = 0

    def run(self) -> None:
        """Until everything offered has ended. Those that come at one moment are seen together."""
        with _no_garbage():
            self._run()

    def _run(self) -> None:
        now = -inf
        while True:
            arrives_s = self._requests[self._next].arrived_s if self._next < len(self._requests) else inf
            leaves_s = self._leaving[0][0] if self._leaving else inf
            if min(arrives_s, leaves_s) == inf:
                break
            if min(arrives_s, leaves_s) > now:
                now = min(arrives_s, leaves_s)
                self._front.advance(now, self._quiet_s(now, leaves_s))
            if leaves_s <= arrives_s:
                self._front.abort(heapq.heappop(self._leaving)[1])
            else:
                self._send(arrives_s)
        self._front.advance(inf)

    def _quiet_s(self, now: float, leaves_s: float) -> float:
        """When something happens again after requests have come now; 0 where none comes."""
        place, until_s = self._next, leaves_s
        while place < len(self._requests) and self._requests[place].arrived_s == now:
            patience_s = self._requests[place].patience_s
            until_s = until_s if patience_s is None else min(until_s, now + patience_s)
            place += 1
        if place == self._next or leaves_s <= now:
            return 0.0
        return until_s if place == len(self._requests) else min(until_s, self._requests[place].arrived_s)

    def run_closed(self, num_at_a_time: int) -> None:
        """Each of so many clients sends its next request when it has an answer; without patience."""
        active = 0
        now: float = 0.0
        while True:
            while active < num_at_a_time and self._next < len(self._requests):
                active += self._send(now)
            event_s = self._front.next_event_at()
            if event_s is None:
                break
            now = event_s
            active -= sum(output.finish is not None for output in self._front.advance(now))

    def _send(self, now: float) -> bool:
        offered, number = self._requests[self._next], self._next
        self._next += 1
        self._progress(self._next, now)
        try:
            due = offered if offered.arrived_s == now else replace(offered, arrived_s=now)
            self._front.add(request_of(due, number, self._vocab_size))
        except RequestError:
            self.num_refused += 1
            return False
        if offered.patience_s is not None:
            heapq.heappush(self._leaving, (now + offered.patience_s, str(number)))
        return True


def check_targets(machine: Machine, targets: Targets, workload: Workload) -> None:
    """ConfigError, which says the floor, for a target that not even the easiest request can meet alone."""
    shortest = min(offered.num_prompt for offered in workload.requests)
    prompt_s = machine.floor(Shape(start=np.zeros(1, np.int64), count=np.array([shortest]), num_sampled=1))
    decode_s = float(machine.floor.decodes(np.array([shortest]), 1)[0])
    for name, target_s, floor_s, what in (
            ("ttft", targets.ttft_s, prompt_s, f"the prompt of {shortest} tokens"),
            ("tpot", targets.tpot_s, decode_s, f"a step of one sequence behind {shortest} tokens")):
        if target_s is not None and target_s < floor_s:
            raise ConfigError(f"--{name} {target_s * 1e3:g}ms is below the floor: {what} takes at least "
                              f"{floor_s * 1e3:.3g} ms on {machine.name}")


class _PreemptedError(Exception):
    """Somebody was."""


class _Calm(Meter):
    """A meter that takes no preemption."""

    def _step(self, record: StepRecord) -> None:
        super()._step(record)
        self._look()

    def leapt(self, leap: Leap) -> None:
        super().leapt(leap)
        self._look()

    def _look(self) -> None:
        if self.num_preemptions:
            raise _PreemptedError


def simulate(machine: Machine, serving: Serving, workload: Workload,
             progress: Progress = lambda begun, now: None) -> Outcome:
    """One engine under a workload. Where no request shares a prefix, nothing that is cached is found but by
    one that was preempted: so the prefix cache is left out, and if somebody is, all begins again with it."""
    if serving.prefix_caching and _shares_nothing(machine.capacity, serving, workload):
        try:
            return _simulate(machine, replace(serving, prefix_caching=False), workload, progress,
                             _Calm(machine.capacity.num_pages, batch_holds=serving.batch_holds))
        except _PreemptedError:
            pass
    return _simulate(machine, serving, workload, progress,
                     Meter(machine.capacity.num_pages, batch_holds=serving.batch_holds))


def _shares_nothing(capacity: Capacity, serving: Serving, workload: Workload) -> bool:
    """Whether a prefix cache has nobody to serve, moves nothing to the host and cuts no chunk for a state."""
    return (serving.kv == "paged" and capacity.num_host_pages < 2
            and not any(group.state_pages for group in capacity.layout.groups)
            and not any(offered.prefix for offered in workload.requests))


def _simulate(machine: Machine, serving: Serving, workload: Workload, progress: Progress,
              meter: Meter) -> Outcome:
    node = Node(machine, serving, meter)
    clients = Clients(node, workload, machine.capacity.vocab_size, progress)
    if workload.num_at_a_time is None:
        clients.run()
    else:
        clients.run_closed(workload.num_at_a_time)
    price = machine.price_usd_per_hour
    return outcome_of(serving.policy, [meter], num_offered=len(workload.requests),
                      num_refused=clients.num_refused, targets=serving.targets,
                      num_devices=machine.num_devices, little_law=node.loop.little_law(),
                      host=host_traffic([node]),
                      usd_per_hour=None if price is None else price * machine.num_devices)
