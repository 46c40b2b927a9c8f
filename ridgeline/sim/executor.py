"""An executor that computes nothing: a step lasts as long as the ledger says, and its tokens are made up.

Plans run one after another, as on a device. Knows no request and no clock; whoever drives the loop moves
time.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.steps import StepSeconds
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.plan import Int, Long, StepPlan, StepResult

_MIX = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: neighbours end up far apart


def made_up(request: Long, position: NDArray[np.int64], vocab_size: int) -> Int:
    """A token id for each (request, position), the same in every run."""
    with np.errstate(over="ignore"):
        place = request.astype(np.uint64) * np.uint64(1 << 20) + position.astype(np.uint64)
        mixed = place * np.uint64(_MIX)
    return ((mixed >> np.uint64(33)) % np.uint64(vocab_size)).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    ticket: int
    plan: StepPlan
    started_s: float
    finished_s: float


class LedgerExecutor:
    """A step takes seconds(plan). A row that samples gets a token that depends on its request and place."""

    def __init__(self, capacity: Capacity, seconds: StepSeconds, max_in_flight: int = 2) -> None:
        self.max_in_flight = max_in_flight
        self._capacity = capacity
        self._seconds = seconds
        self._begun: deque[_Begun] = deque()
        self._next_ticket = 0
        self._free_at_s = 0.0

    def capacity(self) -> Capacity:
        return self._capacity

    def begin(self, plan: StepPlan, now: float) -> int:
        assert len(self._begun) < self.max_in_flight
        started_s = max(now, self._free_at_s)
        self._free_at_s = started_s + self._seconds(plan)
        self._begun.append(_Begun(ticket=self._next_ticket, plan=plan, started_s=started_s,
                                  finished_s=self._free_at_s))
        self._next_ticket += 1
        return self._next_ticket - 1

    def ready_at(self, ticket: int) -> float:
        return next(begun.finished_s for begun in self._begun if begun.ticket == ticket)

    def finish(self, ticket: int, now: float) -> StepResult:
        begun = self._begun.popleft()
        assert begun.ticket == ticket and now >= begun.finished_s, "tickets are finished in order, in time"
        plan, samples = begun.plan, begun.plan.sample > 0
        ends = plan.start.astype(np.int64) + plan.count
        return StepResult(
            step=plan.step, num_new=samples.astype(np.int32),
            tokens=made_up(plan.request[samples], ends[samples], self._capacity.vocab_size),
            failed=np.zeros(plan.num_rows, np.uint8), returned_tickets=plan.copies.ticket,
            started_s=begun.started_s, finished_s=begun.finished_s)
