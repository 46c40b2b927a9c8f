"""The counters of the requests that run, as arrays over runner rows: the steady step touches no object per
row.

For each row: known tokens, placeholders in flight, scheduled tokens and computed tokens, with
computed <= scheduled <= known + in_flight. Knows no page and no policy. All counts are in tokens of the
request. A free row has zeros, so that whole arrays can be worked on without selecting rows first.
"""


import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.request import Request

Long = NDArray[np.int64]
Bool = NDArray[np.bool_]
NO_MARK = 1 << 62


class Taken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step takes of each row, all [num_rows].

    counts: tokens. takes: counts > 0. until: positions below are computed once the step is. samples: the row
    takes its last known token (or placeholder) and samples the next. number: whose row it was. draft: of
    counts, tokens beyond those known, to be verified; None in a step without any.
    """

    counts: Long
    takes: Bool
    until: Long
    samples: Bool
    number: Long
    draft: Long | None = None


class Rows:
    """Fixed runner rows; `number` is the request's engine-wide number, -1 where the row is free.

    end: positions that are ever fed. reserved: positions below it have a writable page. index_at: the
    computed count at which the cache manager hears of the row next. mark: the position where its next chunk
    ends at the latest, so that the state there can be kept; NO_MARK without one. slow: the row's result needs
    more than a token appended. id, choice, num_prompt, num_cached, adapter: the request's own, as columns.
    num_drafts, num_accepted: since it has the row. tokens, times_s [num_rows, room]: the known tokens by
    position, and when the output among them was committed.
    """

    def __init__(self, num_rows: int) -> None:
        self.number: Long = np.full(num_rows, -1, np.int64)
        self._counts: Long = np.zeros((13, num_rows), np.int64)  # one below another: a row is left at once
        (self.num_prompt, self.known, self.in_flight, self.scheduled, self.computed, self.end, self.reserved,
         self.index_at, self.choice, self.num_cached, self.adapter, self.num_drafts,
         self.num_accepted) = self._counts
        self.mark: Long = np.full(num_rows, NO_MARK, np.int64)
        self.last_step: Long = np.full(num_rows, -1, np.int64)
        self.last_token: NDArray[np.int32] = np.zeros(num_rows, np.int32)
        self.slow: Bool = np.zeros(num_rows, np.bool_)
        self.id: list[str] = [""] * num_rows
        self.tokens: NDArray[np.int32] = np.zeros((num_rows, 0), np.int32)
        self.times_s: NDArray[np.float64] = np.zeros((num_rows, 0))
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
        self.number[row] = request.number
        self.num_prompt[row] = request.num_prompt
        self.known[row] = len(request.tokens)
        self.scheduled[row] = self.computed[row] = self.reserved[row] = computed
        self.end[row] = request.end
        self.last_token[row] = request.tokens[-1]
        self.slow[row] = True
        self.choice[row], self.num_cached[row] = request.choice, request.num_cached
        self.adapter[row] = request.adapter
        self.id[row], self.request[row] = request.id, request
        self.make_room(len(request.tokens))
        self.tokens[row, :request.num_prompt] = request.prompt
        self.tokens[row, request.num_prompt:len(request.tokens)] = request.tokens[request.num_prompt:]
        self.row_of[request.number] = row
        request.row = row

    def make_room(self, num_tokens: int) -> None:
        """Columns for so many tokens of each row."""
        room = self.tokens.shape[1]
        if num_tokens > room:
            widths = (0, 0), (0, max(num_tokens - room, room))
            self.tokens, self.times_s = np.pad(self.tokens, widths), np.pad(self.times_s, widths)

    def sync(self, request: Request) -> None:
        """Give a request that runs the tokens that only its row knows."""
        new = slice(len(request.tokens), self.known[request.row])
        request.tokens.frombytes(self.tokens[request.row, new].tobytes())
        request.token_times_s.frombytes(self.times_s[request.row, new].tobytes())

    def append(self, request: Request, num_new: int) -> None:
        """The request's last num_new tokens are news to its row."""
        row, known = request.row, len(request.tokens)
        self.make_room(known)
        self.tokens[row, known - num_new:known] = request.tokens[known - num_new:]
        self.known[row], self.last_token[row] = known, request.tokens[-1]

    def leave(self, request: Request) -> None:
        """Free the request's row; steps in flight may still name it."""
        row = request.row
        self.sync(request)
        request.last_step = int(self.last_step[row])
        request.num_drafts += int(self.num_drafts[row])
        request.num_accepted += int(self.num_accepted[row])
        self.number[row] = self.last_step[row] = -1
        self.mark[row] = NO_MARK
        self._counts[:, row] = 0
        self.id[row], self.request[row] = "", None
        del self.row_of[request.number]
        request.row = -1
        self._free.append(row)

    def pending(self) -> Long:
        """Tokens that the next plan may take: known + placeholders - scheduled, never past the end."""
        return np.minimum(self.known + self.in_flight, self.end) - self.scheduled

    def prompting(self) -> Bool:
        """Rows whose prompt is not planned to its end; those that run and are not among them decode."""
        return self.scheduled < self.num_prompt

    def requests(self, rows: Long) -> list[Request]:
        """The requests of rows that are in use."""
        return [self.request[row] for row in rows.tolist()]

    def by_rank(self, rows: Long) -> Long:
        """The same rows, first in rank first."""
        orders = [request.order for request in self.requests(rows)]
        return rows[sorted(range(len(orders)), key=orders.__getitem__)]

    def take(self, counts: Long, draft: Long | None = None) -> Taken:
        """The step in which each row computes counts tokens, drafts included; nothing moves yet."""
        until = self.scheduled + counts
        takes = counts > 0
        last = self.known + self.in_flight if draft is None else self.known + self.in_flight + draft
        return Taken(counts=counts, takes=takes, until=until, number=self.number.copy(),
                     samples=takes & (until == last), draft=draft)

    def schedule(self, taken: Taken, step: int) -> None:
        """The step is planned: count its tokens and its placeholders."""
        np.copyto(self.scheduled, taken.until)
        self.in_flight += taken.samples
        if taken.draft is not None:
            self.in_flight += taken.draft
        np.copyto(self.last_step, step, where=taken.takes)

    def trim(self, taken: Taken, took: NDArray[np.int32], alive: Bool) -> None:
        """A step that verified has brought `took` [num_rows] tokens: drafts behind them were never
        computed."""
        assert taken.draft is not None
        tried = alive & (taken.draft > 0)
        wrong = np.where(tried, taken.draft + 1 - took, 0)
        self.num_drafts += np.where(tried, taken.draft, 0)
        self.num_accepted += np.where(tried, took - 1, 0)
        self.in_flight -= np.where(alive, taken.draft, 0)
        self.scheduled -= wrong
        self.computed -= wrong

    def check(self) -> None:
        """The counters' order, and rows and requests naming each other."""
        live = np.flatnonzero(self.number >= 0)
        assert len(live) + len(self._free) == self.size == len(set(self._free) | set(live.tolist()))
        assert np.all(self.computed <= self.scheduled) and np.all(self.scheduled <= self.reserved)
        assert np.all(self.scheduled <= np.minimum(self.known + self.in_flight, self.end))
        assert np.all(self.in_flight >= 0)
        assert self.row_of == {int(self.number[row]): int(row) for row in live}
        for row in live.tolist():
            request = self.request[row]
            assert request is not None and request.row == row and request.number == self.number[row]
            assert request.num_prompt <= len(request.tokens) <= self.known[row]
            assert np.array_equal(self.tokens[row, :len(request.tokens)], request.tokens)
            assert self.tokens[row, self.known[row] - 1] == self.last_token[row]
        assert not self.known[self._free].any() and not self.pending()[self._free].any()
