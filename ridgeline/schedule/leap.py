"""Steps in which nothing can change, taken at once: every row decodes one token until it has none left to
feed, nobody waits, nobody ends, no page runs short. What comes of it is what planning and committing the
steps one by one gives. For executors that can tell the future (a simulation).

Legend: K steps, N rows that run, in row order. D steps are in flight, before a leap and after it: it commits
K of them and plans K behind. A row's tokens come from the last `in_flight` steps of the D and from all
behind: one whose prompt is still being computed has its first later than the others have their next.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.kv.interface import Manager
from ridgeline.schedule.book import Book
from ridgeline.schedule.plan import PLACEHOLDER, SAMPLE_NEXT, Copies, Int, StepPlan, StepResult
from ridgeline.schedule.request import Request
from ridgeline.schedule.rows import NO_MARK, Long, Rows, Taken
from ridgeline.schedule.take import note_step
from ridgeline.spec.cache import CacheLayout, Paged

Begun = Sequence[tuple[int, Taken]]
Seconds = NDArray[np.float64]
Events = dict[int, list[tuple[int, int]]]  # (row, tokens), by step of a leap


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Where a leap can go. feeds [N]: steps that each row can still be planned for; in all of them but the
    last it decodes. most: steps for which there are pages."""

    feeds: Long
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Future:
    """What an executor says of the next steps: when each starts and ends [K], and the tokens [K, N], none of
    which ends a request; a token of a step that brings its row none means nothing."""

    started_s: Seconds
    finished_s: Seconds
    tokens: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leap:
    """Steps that were committed without a record each [K]: when each started and finished, its rows, and the
    share of it that was prefill (by tokens); requests that ran and pages that they held after it was
    planned."""

    started_s: Seconds
    finished_s: Seconds
    num_rows: Int
    prefill_share: Seconds
    running: Int
    used_pages: Int

    @property
    def num_steps(self) -> int:
        return len(self.finished_s)


def decodes_plan(step: int, taken: Taken) -> StepPlan:
    """A step in which rows decode a token that only the device knows yet. Without its news of block tables:
    who leaps does not read them."""
    at = taken.takes.nonzero()[0]
    ones = np.ones(len(at), np.int32)
    return StepPlan(step=step, request=taken.number[at], row=at.astype(np.int32), num_decodes=len(at),
                    start=(taken.until[at] - 1).astype(np.int32), count=ones, draft=ones - 1,
                    sample=ones.astype(np.uint8) * np.uint8(SAMPLE_NEXT), tokens=ones * PLACEHOLDER,
                    row_starts=(), tables=(), copies=Copies.none())


class Leaper:
    """Finds how far a leap may go, and takes it."""

    def __init__(self, *, rows: Rows, book: Book, manager: Manager, layout: CacheLayout) -> None:
        self._rows = rows
        self._book = book
        self._manager = manager
        self._block_tokens = layout.block_tokens
        self._num_groups = len(layout.groups)
        self._plain = self._num_groups == 1 and layout.groups[0].kind is Paged

    def course(self, begun: Begun) -> Course | None:
        """Where a leap can go, None where it cannot start."""
        rows, num_rows = self._rows, self._rows.num_running
        if not begun or self._book.num_waiting or np.count_nonzero(begun[-1][1].samples) != num_rows:
            return None
        pending = rows.pending()
        if np.count_nonzero(pending) != num_rows or int(pending.sum()) != num_rows:
            return None
        for left, (_, taken) in zip(range(len(begun), 0, -1), begun, strict=True):
            theirs = taken.takes & (taken.number != rows.number)
            if taken.draft is not None or theirs.any() or (taken.samples != (rows.in_flight >= left)).any():
                return None
        live = rows.number >= 0
        if not all(map(_is_plain, rows.requests((rows.slow & live).nonzero()[0]))):
            return None
        if (rows.mark < NO_MARK).any():
            return None
        feeds, most = (rows.end - rows.scheduled)[live], NO_MARK
        if self._manager.grows:
            most = (self._manager.num_free_pages // (num_rows * self._num_groups) - 1) * self._block_tokens
        return Course(feeds=feeds, most=most)

    def result(self, plan: StepPlan, future: Future, place: int) -> StepResult:
        """What the future says of a plan in flight, the place-th."""
        samples = plan.sample > 0
        columns = np.searchsorted((self._rows.number >= 0).nonzero()[0], plan.row[samples])
        return StepResult(
            step=plan.step, num_new=samples.astype(np.int32), tokens=future.tokens[place, columns],
            failed=np.zeros(plan.num_rows, np.uint8), started_s=float(future.started_s[place]),
            finished_s=float(future.finished_s[place]))

    def take(self, begun: Begun, future: Future) -> tuple[list[tuple[int, Taken]], list[StepPlan], Int]:
        """Commit as many steps as the future has, more than D, and plan as many behind: (the steps in flight
        then, their plans, the pages held after each of the K was planned)."""
        rows, depth, num_steps = self._rows, len(begun), len(future.finished_s)
        at, first = (rows.number >= 0).nonzero()[0], begun[0][0]
        end, late = rows.scheduled[at], depth - rows.in_flight[at]
        fed = np.minimum(rows.end[at] - end, num_steps)
        rows.make_room(int(rows.known[at].max()) + num_steps)
        self._write(at, late, future)
        used = self._pages(at, late, fed, begun, future.finished_s)
        self._reach(begun, future)
        rows.known[at] += num_steps - late
        rows.scheduled[at] += fed
        rows.computed[at] = end + num_steps - depth
        rows.in_flight[at] = fed + depth - num_steps
        rows.last_token[at] = future.tokens[-1]
        rows.last_step[at] = first + depth - 1 + fed
        self._book.counters.num_generated_tokens += num_steps * len(at) - int(late.sum())
        left, plans = [], []
        for behind in range(num_steps - depth, num_steps):
            taken = self._taken(at[fed > behind], end[fed > behind] + behind)
            left.append((first + depth + behind, taken))
            plans.append(decodes_plan(first + depth + behind, taken))
        return left, plans, used

    def _taken(self, at: Long, start: Long) -> Taken:
        """A step of one decode of each of these rows."""
        rows = self._rows
        takes, until = np.zeros(rows.size, np.bool_), rows.scheduled.copy()
        takes[at], until[at] = True, start + 1
        return Taken(counts=takes.astype(np.int64), takes=takes, until=until, samples=takes,
                     number=rows.number.copy())

    def _write(self, at: Long, late: Long, future: Future) -> None:
        """Tokens and their times into the rows, each from its first on."""
        rows, num_steps = self._rows, len(future.finished_s)
        place = rows.known[at, None] + np.arange(num_steps)
        quick = late == 0
        rows.tokens[at[quick, None], place[quick]] = future.tokens.T[quick]
        rows.times_s[at[quick, None], place[quick]] = future.finished_s
        for n in late.nonzero()[0].tolist():
            row, known, since = at[n], rows.known[at[n]], late[n]
            rows.tokens[row, known:known + num_steps - since] = future.tokens[since:, n]
            rows.times_s[row, known:known + num_steps - since] = future.finished_s[since:]

    def _reach(self, begun: Begun, future: Future) -> None:
        """What the slow way notes of a request whose prompt is computed, and of its first token."""
        rows = self._rows
        for row in (rows.slow & (rows.number >= 0)).nonzero()[0].tolist():
            request = rows.request[row]
            assert request is not None
            for i, (_, taken) in enumerate(begun):
                if taken.takes[row]:
                    start = int(taken.until[row] - taken.counts[row])
                    note_step(request, start, float(future.started_s[i]))
                if taken.samples[row] and request.first_token_s is None:
                    request.first_token_s = float(future.finished_s[i])
            rows.slow[row] = False

    def _pages(self, at: Long, late: Long, fed: Long, begun: Begun, times_s: Seconds) -> Int:
        """The conversation with the KV manager that the steps would have had, in their order: what is full is
        indexed when a step is committed, what comes next gets its pages when one is planned."""
        rows, manager = self._rows, self._manager
        first, depth, num_steps = begun[0][0], len(begun), len(times_s)
        filled, short = self._filled(at, late, begun, num_steps), self._short(at, fed)
        if self._plain and manager.grows:
            return self._pages_at_once(filled, short, begun, times_s)
        used, before, closed = np.empty(num_steps, np.int32), 0, first + depth - 1
        for i in [*sorted(filled.keys() | short.keys()), num_steps]:
            used[before:i], before = manager.num_used_pages, i
            if closed < first + depth + i - 1:
                closed = first + depth + i - 1
                manager.close_step(closed, rows.row_of, float(times_s[i - 1]))
            manager.step_finished(first + min(i, num_steps - 1))
            self._index(filled.get(i, []))
            self._reserve(short.get(i, []))
        return used

    def _pages_at_once(self, filled: Events, short: Events, begun: Begun, times_s: Seconds) -> Int:
        """The same where a sequence has pages of one kind and drops none: which row has which page is all
        one, so that each asks once for all it needs, and is indexed once. Prompts' blocks go first: only they
        may be cached already."""
        rows, manager, num_steps = self._rows, self._manager, len(times_s)
        first, depth = begun[0][0], len(begun)
        held = np.zeros(num_steps, np.int32)
        held[list(short)] = [len(need) for need in short.values()]
        used = manager.num_used_pages + np.cumsum(held, dtype=np.int32)
        for i in range(depth):
            manager.step_finished(first + i)
            self._index(filled.pop(i, []))
            self._reserve(short.pop(i, []))
        grown = {row: num for i in sorted(short) for row, num in short[i]}
        last = {row: num for i in sorted(filled) for row, num in filled[i]}
        self._reserve(list(grown.items()))
        self._index(list(last.items()))
        manager.close_step(first + depth + num_steps - 1, rows.row_of, float(times_s[-1]))
        manager.step_finished(first + num_steps - 1)
        assert used[-1] == manager.num_used_pages
        return used

    def _index(self, due: list[tuple[int, int]]) -> None:
        rows = self._rows
        if due:
            self._manager.commit_all([int(rows.number[row]) for row, _ in due], [num for _, num in due],
                                     [rows.tokens[row] for row, _ in due])

    def _reserve(self, need: list[tuple[int, int]]) -> None:
        numbers = [int(self._rows.number[row]) for row, _ in need]
        done = self._manager.reserve_all(numbers, [num for _, num in need])
        assert done == len(need), "a leap has its pages"

    def _filled(self, at: Long, late: Long, begun: Begun, num_steps: int) -> Events:
        """(row, computed tokens) of rows that fill a block, by the step whose commit does it."""
        found, block, depth = defaultdict(list), self._block_tokens, len(begun)
        end = self._rows.scheduled[at].tolist()
        for row, last, since in zip(at.tolist(), end, late.tolist(), strict=True):
            due = int(self._rows.index_at[row])
            for i, (_, taken) in enumerate(begun[:since]):
                if taken.takes[row] and taken.until[row] >= due:
                    found[i].append((row, int(taken.until[row])))
                    due = (int(taken.until[row]) // block + 1) * block
            computed = last - depth + 1  # once the first is committed, and one more with each
            i = max(due - computed, since)
            while i < num_steps:
                found[i].append((row, computed + i))
                due = ((computed + i) // block + 1) * block
                i = due - computed
            self._rows.index_at[row] = due
        return found

    def _short(self, at: Long, fed: Long) -> Events:
        """(row, tokens) of rows that need another block, by the step behind those in flight, by rank."""
        found, block, rows = defaultdict(list), self._block_tokens, self._rows
        feeds = dict(zip(at.tolist(), fed.tolist(), strict=True))
        for row in rows.by_rank(at).tolist():
            reserved, scheduled = int(rows.reserved[row]), int(rows.scheduled[row])
            while reserved < scheduled + feeds[row]:
                i = max(reserved - scheduled, 0)
                reserved = -(-(scheduled + i + 1) // block) * block
                found[i].append((row, reserved))
            rows.reserved[row] = reserved
        return found


def _is_plain(request: Request) -> bool:
    """Its first token needs nothing beside being noted."""
    return request.params.logprobs is None and request.max_tokens > 0 and not request.owes_prompt_logprobs
