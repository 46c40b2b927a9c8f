"""The counters of the requests that run, as arrays over runner rows: the steady step touches no object per
row.

For each row: known tokens, placeholders in flight, scheduled tokens and computed tokens, with computed <=
scheduled <= known + in_flight. Knows no page and no policy. All counts are in tokens of the request.
"""

import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.plan import SAMPLE_NEXT, StepPlan
from ridgeline.schedule.request import Request

Long = NDArray[np.int64]


class Rows:
    """Fixed runner rows; `number` is the request's engine-wide number, -1 where the row is free.

    end: positions that are ever fed. reserved: positions below it have a writable page. index_at: the
    computed count at which the cache manager hears of the row next. slow: the row's result needs more than a
    token appended.
    """

    def __init__(self, num_rows: int) -> None:
        self.number: Long = np.full(num_rows, -1, np.int64)
        self.known: Long = np.zeros(num_rows, np.int64)
        self.in_flight: Long = np.zeros(num_rows, np.int64)
        self.scheduled: Long = np.zeros(num_rows, np.int64)
        self.computed: Long = np.zeros(num_rows, np.int64)
        self.end: Long = np.zeros(num_rows, np.int64)
        self.reserved: Long = np.zeros(num_rows, np.int64)
        self.index_at: Long = np.zeros(num_rows, np.int64)
        self.last_step: Long = np.full(num_rows, -1, np.int64)
        self.num_prompt: Long = np.zeros(num_rows, np.int64)
        self.last_token: NDArray[np.int32] = np.zeros(num_rows, np.int32)
        self.slow: NDArray[np.bool_] = np.zeros(num_rows, np.bool_)
        self.request: list[Request | None] = [None] * num_rows
        self.row_of: dict[int, int] = {}
        self._free = list(range(num_rows - 1, -1, -1))

    @property
    def size(self) -> int:
        return len(self.number)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_running(self) -> int:
        return len(self.row_of)

    def join(self, request: Request, computed: int) -> None:
        """Give the request a row, its first `computed` tokens being in the cache already."""
        row = self._free.pop()
        assert self.number[row] < 0
        self.number[row] = request.number
        self.known[row] = len(request.tokens)
        self.in_flight[row] = 0
        self.scheduled[row] = self.computed[row] = self.reserved[row] = computed
        self.end[row] = request.end
        self.num_prompt[row] = request.num_prompt
        self.last_token[row] = request.tokens[-1]
        self.slow[row] = True
        self.request[row] = request
        self.row_of[request.number] = row
        request.row = row

    def leave(self, request: Request) -> None:
        """Free the request's row; steps in flight may still name it."""
        row = request.row
        request.last_step = int(self.last_step[row])
        self.number[row] = -1
        self.request[row] = None
        del self.row_of[request.number]
        request.row = -1
        self._free.append(row)

    def live(self) -> Long:
        """Rows in use, ascending."""
        return np.flatnonzero(self.number >= 0)

    def pending(self, rows: Long) -> Long:
        """Tokens that the next plan may take: known + placeholders in flight - scheduled, never past the
        end."""
        return np.minimum(self.known[rows] + self.in_flight[rows], self.end[rows]) - self.scheduled[rows]

    def by_rank(self, rows: Long) -> Long:
        """The same rows, first in rank first."""
        orders = [(request.order, row) for row in rows.tolist() if (request := self.request[row]) is not None]
        return np.array([row for _, row in sorted(orders)], np.int64)

    def schedule(self, plan: StepPlan) -> None:
        """A plan of these rows has been made: count its tokens and its placeholders."""
        self.scheduled[plan.row] += plan.count
        self.in_flight[plan.row] += plan.sample == SAMPLE_NEXT
        self.last_step[plan.row] = plan.step

    def check(self) -> None:
        """The counters' order, and rows and requests naming each other."""
        live = self.live()
        assert len(live) + len(self._free) == len(self.number) == len(set(self._free) | set(live.tolist()))
        assert np.all(self.computed[live] <= self.scheduled[live])
        assert np.all(self.scheduled[live] <= np.minimum(self.known + self.in_flight, self.end)[live])
        assert np.all(self.scheduled[live] <= self.reserved[live])
        assert np.all(self.in_flight[live] >= 0)
        assert self.row_of == {int(self.number[row]): int(row) for row in live}
        for row in live.tolist():
            request = self.request[row]
            assert request is not None and request.row == row and request.number == self.number[row]
            assert len(request.tokens) == self.known[row] and request.tokens[-1] == self.last_token[row]
