"""What requests wait for, and how long: a reason for each stretch, noted when it changes.

A plan looks at few of those who wait, so it names a reason for the first in the queue alone. All others
stand behind it; what kept the queue meanwhile is told by one clock of its own. Whoever joins is sorted once,
at the next plan, and nobody else is looked at.
"""

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.schedule.request import Request


class Wait(enum.StrEnum):
    """STEP: for the next plan, a step being in flight. RANK: behind others. ROWS, BUDGET, PAGES, POLICY:
    first in line, but every row is taken, the step's tokens are spent, the cache has no room, or the policy
    starts no more (a batch must end). FORK: for the first choice's prompt. PREEMPTED: until it runs again."""

    STEP = "step"
    RANK = "rank"
    ROWS = "rows"
    BUDGET = "budget"
    PAGES = "pages"
    POLICY = "policy"
    FORK = "fork"
    PREEMPTED = "preempted"


_FIRST = (Wait.ROWS, Wait.BUDGET, Wait.PAGES, Wait.POLICY)


class Waits:
    """Opens and closes stretches in `Request.waits_s`, and counts them over all requests. In a request's own
    the time behind others stands by what these waited for, as "behind_rows".

    now: the scheduler's time. counts: who waits now, by reason.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.counts = dict.fromkeys(Wait, 0)
        self._closed_s = dict.fromkeys(Wait, 0.0)
        self._since_s = dict.fromkeys(Wait, 0.0)  # summed over the open stretches
        self._fresh: list[Request] = []
        self._first: Request | None = None
        self._line_s = dict.fromkeys(Wait, 0.0)  # what the first in the queue waited for, whoever it was
        self._line = (Wait.STEP, 0.0)  # and does since when

    def begin(self, request: "Request", reason: Wait, since_s: float) -> None:
        """A request starts to wait."""
        request.wait, request.wait_since_s = reason, since_s
        self.counts[reason] += 1
        self._since_s[reason] += since_s
        if reason is Wait.STEP:
            self._fresh.append(request)
        elif reason is Wait.RANK:
            self._fold()
            request.line_s = dict(self._line_s)

    def end(self, request: "Request") -> None:
        """It waits no more: it runs, or is over."""
        if request is self._first:
            self._fold()
            self._first = None
        self._close(request)

    def _close(self, request: "Request") -> None:
        reason = request.wait
        assert reason is not None
        spent_s = max(0.0, self.now - request.wait_since_s)
        parts = {str(reason): spent_s} if reason is not Wait.RANK else self._behind(request)
        for name, part_s in parts.items():
            request.waits_s[name] = request.waits_s.get(name, 0.0) + part_s
        self._closed_s[reason] += spent_s
        self._since_s[reason] -= request.wait_since_s
        self.counts[reason] -= 1
        request.wait = None

    def change(self, request: "Request", reason: Wait) -> None:
        """From here on it waits for something else."""
        if request.wait is not reason:
            self._close(request)
            self.begin(request, reason, self.now)

    def settle(self, first: "Request | None", reason: Wait) -> None:
        """After a plan: what the first in the queue waits for; the others stand behind it."""
        if reason is not self._line[0] or first is not self._first:
            self._fold()
            self._line = (reason, self.now)
        for request in self._fresh:
            if request.wait is Wait.STEP:
                self.change(request, Wait.RANK)
        self._fresh.clear()
        held, self._first = self._first, first
        if held is not None and held is not first and held.wait in _FIRST:
            self.change(held, Wait.RANK)
        if first is not None and first.wait is not Wait.PREEMPTED:
            self.change(first, reason)

    def stands(self, first: "Request", reason: Wait) -> bool:
        """Whether the next plan will find what the last one found, if it says this of the first in the
        queue."""
        return not self._fresh and self._first is first and self._line[0] is reason

    def _fold(self) -> None:
        """The queue's clock, up to now. Without a first in the queue it stands."""
        reason, since_s = self._line
        if self._first is not None:
            self._line_s[reason] += self.now - since_s
        self._line = (reason, self.now)

    def _behind(self, request: "Request") -> dict[str, float]:
        """What kept those before a request, since it stands behind them."""
        self._fold()
        return {f"behind_{reason}": self._line_s[reason] - before_s
                for reason, before_s in request.line_s.items() if self._line_s[reason] > before_s}

    def seconds(self) -> Mapping[str, float]:
        """Seconds waited since the start, by reason, over all requests; those who wait now included."""
        return {reason: self._closed_s[reason]
                + max(0.0, self.counts[reason] * self.now - self._since_s[reason]) for reason in Wait}
