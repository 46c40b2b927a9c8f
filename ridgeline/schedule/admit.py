"""Who starts: waiting requests are tried in the policy's order while rows, tokens and pages last.

A request without room for it is passed by those behind it, so that a large one does not freeze small ones;
and a policy may prefer whom it likes. Both are bounded by ageing. Each start passes the eldest request that
waits and those that were tried before it without room. Whoever was passed, or preempted, `patience` times
ages: it ranks before all that have not aged, among its like by age, and while the first of the aged has no
room nobody starts.

Nobody starves. Take a request R, let E be the requests numbered before it that are alive when it comes, and
L the most steps that one request needs to end once it is first in rank: as many as it has tokens, times
(depth + 2), since it may wait for pages of steps in flight, times (h + 1) under a policy that holds rows for
at most h steps in a row. The first in rank always advances (memory.py).
  1. While R waits as the eldest, each start but its own passes it: at most `patience`. Before it is the
     eldest, one of E waits as the eldest, and the same holds for that one. So at most (|E| + 1) x patience
     requests that came after R start before R, or R's preemptions age it earlier.
  2. An aged request is first in rank as soon as those aged before it (all of E) have ended. While it waits
     for room nobody starts, so that those that run end one by one; the last leaves it alone, and alone it
     starts with whatever fits. From then on nobody takes a page from it, and it ends.
  3. Hence R has ended after at most ((|E| + 1) x (patience + 1) + running) x L steps, `running` being those
     that run when it comes, and it has started before.
Requests that a policy holds back although there is room (static batching waits for its batch's end) come to
the same: what it waits for are requests that run, and step 3 counts them.
"""

from collections.abc import Iterator
from itertools import chain, takewhile

import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.assemble import row_start
from ridgeline.schedule.book import Book
from ridgeline.schedule.memory import Memory
from ridgeline.schedule.plan import RowStart
from ridgeline.schedule.policies.policy import LOOK, Limits, Policy, View
from ridgeline.schedule.request import Request
from ridgeline.schedule.rows import Rows
from ridgeline.schedule.waits import Wait

Long = NDArray[np.int64]


class Admission:
    """Starts requests. cache: False for the naive path, whose rows are computed whole in each step."""

    def __init__(self, *, rows: Rows, book: Book, memory: Memory, policy: Policy, cache: bool) -> None:
        self._rows = rows
        self._book = book
        self._memory = memory
        self._policy = policy
        self._cache = cache

    def admit(self, counts: Long, limits: Limits, view: View, committed: int, now: float) -> list[RowStart]:
        """Start what has room; adds the tokens to counts. committed: the last step whose tokens are known (a
        request preempted with a token in flight waits for it)."""
        queue, starts = self._book.queue, []
        most = self._rows.num_free if limits.starts is None else min(limits.starts, self._rows.num_free)
        left = limits.tokens - int(np.add.reduce(counts)) if queue and most > 0 else 0
        first = self._cache and limits.whole and left > 0 and not np.count_nonzero(
            counts[self._rows.prompting()])
        without: list[Request] = []
        for request in self._line(view, now) if left > 0 else ():
            if not (first or self._fits(request, left, limits)):
                break
            computed, count = (0, 0) if request.last_step > committed else self._memory.open(request, left)
            if count:
                self._start(request, computed, count, without, now)
                counts[request.row] = count
                left, first = left - count, False
                starts.append(row_start(request))
            else:
                without.append(request)
                if self._due(request) or len(without) == LOOK:
                    break
            if left <= 0 or len(starts) == most or not queue:
                break
        self._note(without, limits, len(starts))
        return starts

    def _note(self, without: list[Request], limits: Limits, num_starts: int) -> None:
        """What the first in line waits for after this plan."""
        queue, reason = self._book.queue, Wait.BUDGET
        if without:
            reason = Wait.PAGES
        elif not self._rows.num_free:
            reason = Wait.ROWS
        elif limits.starts is not None and num_starts >= limits.starts:
            reason = Wait.POLICY
        first = without[0] if without else queue.first if queue else None
        self._book.waits.settle(first, reason)

    def _line(self, view: View, now: float) -> Iterator[Request]:
        """The aged, then the others in the policy's order."""
        queue = self._book.queue
        self._due(queue.eldest)
        named: set[int] = set()
        for request in chain(list(takewhile(_is_aged, queue)), self._policy.line(view, now)):
            if request.number not in named:
                assert request.row < 0, "a policy lines up requests that run"
                named.add(request.number)
                yield request

    def _due(self, request: Request) -> bool:
        """Whether a waiting request is aged, or is now."""
        if not request.aged and request.passed + request.num_preemptions >= self._policy.patience:
            self._book.age(request)
        return request.aged

    def _fits(self, request: Request, left: int, limits: Limits) -> bool:
        """True unless its prompt would have to be cut and must not be."""
        if len(request.tokens) <= left or (self._cache and not limits.whole):
            return True
        return len(request.tokens) - self._memory.cached(request) <= left

    def _start(self, request: Request, computed: int, count: int, without: list[Request],
               now: float) -> None:
        eldest = self._book.queue.eldest
        self._book.start(request, computed, now)
        self._memory.opened(request, count)
        for other in without if request is eldest or eldest in without else [*without, eldest]:
            other.passed += 1


def _is_aged(request: Request) -> bool:
    return request.aged
