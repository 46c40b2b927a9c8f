"""An executor that computes nothing: a step lasts as long as the ledger says, and its tokens are made up.

Plans run one after another, as on a device. Knows no request and no clock; whoever drives the loop moves
time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.steps import StepSeconds
from ridgeline.schedule.course import Course, Future
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.plan import Int, Long, StepPlan, StepResult

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbours end up far apart
_HIGH = np.uint64(33)
_IDLE_S = 0.01  # a pause that a device notices


def made_up(request: Long, position: Long, vocab_size: int) -> Int:
    """A token id for each (request, position), the same in every run."""
    mixed = ((request << 20) + position).view(np.uint64) * _MIX
    return ((mixed >> _HIGH).astype(np.uint32) % np.uint32(vocab_size)).view(np.int32)


class _Begun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    ticket: int
    plan: StepPlan
    started_s: float
    finished_s: float


class LedgerExecutor:
    """A step takes seconds(plan) once its pages from and to the host are copied, each in page_s: as on a
    device, whose stream has the copies before the forward pass. A row that samples gets a token that depends
    on its request and place. seen: told of each plan, but of those that are leapt over. waking: what a step
    of so many seconds takes longer after a pause."""

    def __init__(self, capacity: Capacity, seconds: StepSeconds, max_in_flight: int = 2,
                 seen: Callable[[StepPlan], object] = lambda plan: None, page_s: float = 0.0,
                 waking: Callable[[float], float] = lambda seconds: 0.0) -> None:
        self.max_in_flight = max_in_flight
        self._capacity = capacity
        self._seconds = seconds
        self._seen = seen
        self._page_s = page_s
        self._waking = waking
        self._begun: deque[_Begun] = deque()
        self._next_ticket = 0
        self._free_at_s = 0.0
        self._decode_s = 0.0  # of a recent step of decodes alone
        self._foreseen_s = np.zeros(0)  # the ends of steps, the first one's start before them

    def capacity(self) -> Capacity:
        return self._capacity

    @property
    def free_at_s(self) -> float:
        """When all steps begun have ended."""
        return self._free_at_s

    def begin(self, plan: StepPlan, now: float) -> int:
        assert len(self._begun) < self.max_in_flight
        self._seen(plan)
        started_s = max(now, self._free_at_s)
        alone = plan.num_decodes == plan.num_rows
        took_s = float(self._seconds.decodes(plan.start, 1)[0]) if alone else self._seconds(plan)
        if started_s > self._free_at_s + _IDLE_S:
            took_s += self._waking(took_s)
        if len(plan.copies):
            took_s += self._page_s * np.count_nonzero(plan.copies.source_space | plan.copies.target_space)
        self._free_at_s = started_s + took_s
        self._begun.append(_Begun(ticket=self._next_ticket, plan=plan, started_s=started_s,
                                  finished_s=self._free_at_s))
        self._next_ticket += 1
        return self._next_ticket - 1

    def ready_at(self, ticket: int) -> float:
        for begun in self._begun:
            if begun.ticket == ticket:
                return begun.finished_s
        raise AssertionError(f"ticket {ticket} is not in flight")

    def foresee(self, course: Course, until_s: float, quiet_s: float) -> Future | None:
        """See `schedule.executor.Oracle`. The times are those that steps have one by one, to the last bit."""
        depth = len(self._begun)
        if self._free_at_s > until_s or course.most <= depth:
            return None
        behind_s, whole = self._behind_s(course, until_s)
        times_s = np.concatenate([[one.started_s for one in self._begun], [self._free_at_s], *behind_s])
        np.add.accumulate(times_s[depth:], out=times_s[depth:])
        most = min(len(times_s) - 1 - depth * (not whole), course.most)
        num_steps = num_plans = int(times_s[1:most + 1].searchsorted(until_s, side="right"))
        if num_steps < min(most, len(times_s) - 1) and times_s[num_steps + 1] <= quiet_s \
                and not np.count_nonzero(course.stop == num_steps + 1):
            num_steps += 1  # somebody comes while it runs
        if num_steps <= depth:
            return None
        self._foreseen_s = times_s
        place = course.scheduled - course.last + np.arange(num_steps)[:, None]
        return Future(started_s=times_s[:num_steps], finished_s=times_s[1:num_steps + 1], num_plans=num_plans,
                      tokens=made_up(course.request, place, self._capacity.vocab_size))

    def _behind_s(self, course: Course, until_s: float) -> tuple[list[NDArray[np.float64]], bool]:
        """Seconds of the steps behind those begun, in parts, up to about until_s: more would be of no use,
        and after fewer another leap follows. Whether these are all that there are."""
        feeds, ends = course.feeds, course.scheduled
        room_s, found, done = until_s - self._free_at_s, [], 0
        stops = sorted(set(feeds.tolist()))  # rows leave, one after another
        for stop in stops if stops[0] else stops[1:]:
            num = min(stop, course.most) - done
            if room_s < inf and self._decode_s:
                num = min(num, int(room_s / self._decode_s * 1.1) + len(self._begun) + 2)
            if num > 0:
                starts = ends + done if done < stops[0] else ends[feeds > done] + done
                found.append(self._seconds.decodes(starts, num))
                self._decode_s = float(found[-1][0])
                room_s -= float(np.add.reduce(found[-1]))
                done += num
            if done < stop:
                break
        return found, done == stops[-1]

    def leap(self, num_steps: int, plans: Sequence[StepPlan]) -> list[int]:
        times_s = self._foreseen_s[num_steps:num_steps + len(plans) + 1].tolist()  # the first: of the start
        self._next_ticket += num_steps
        tickets = list(range(self._next_ticket - len(plans), self._next_ticket))
        self._begun = deque(
            _Begun(ticket=ticket, plan=plan, started_s=times_s[i], finished_s=times_s[i + 1])
            for i, (ticket, plan) in enumerate(zip(tickets, plans, strict=True)))
        self._free_at_s = times_s[-1]
        return tickets

    def finish(self, ticket: int, now: float) -> StepResult:
        begun = self._begun.popleft()
        assert begun.ticket == ticket and now >= begun.finished_s, "tickets are finished in order, in time"
        plan, samples = begun.plan, begun.plan.sample > 0
        request, ends = plan.request, plan.start.astype(np.int64) + plan.count
        if plan.num_decodes < plan.num_rows:
            request, ends = request[samples], ends[samples]
        return StepResult(
            step=plan.step, num_new=samples.astype(np.int32),
            tokens=made_up(request, ends, self._capacity.vocab_size),
            failed=np.zeros(plan.num_rows, np.uint8), returned_tickets=plan.copies.ticket,
            started_s=begun.started_s, finished_s=begun.finished_s)
