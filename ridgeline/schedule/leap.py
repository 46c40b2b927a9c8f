"""Steps of which all is known before, taken at once: every row decodes one token until it has none left to
feed and ends by its length, nobody comes, no page runs short. What comes of it is what planning and
committing the steps one by one gives. For executors that can tell the future (a simulation).

Legend: K steps, N rows that run, in row order. D steps are in flight, before a leap and after it (fewer where
all rows end): it commits K of them and plans K behind. A row's tokens come with the commits from `late` to
before `stop`: one whose prompt is still being computed has its first later than the others have their next,
and one that ends is in no step from there on. Where somebody comes before the last of the K has ended, which
ends nobody, the plan that would follow it is left to who plans with them in the queue.
"""

from collections import defaultdict

import numpy as np

from ridgeline.kv.interface import Manager
from ridgeline.schedule.book import Book
from ridgeline.schedule.course import Begun, Course, Future, Landed, Seconds
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.memory import Memory
from ridgeline.schedule.plan import PLACEHOLDER, SAMPLE_NEXT, Copies, StepPlan
from ridgeline.schedule.policies.policy import LOOK, Policy
from ridgeline.schedule.request import Finish, Output, Request
from ridgeline.schedule.rows import NO_MARK, Long, Rows, Taken
from ridgeline.schedule.take import note_step
from ridgeline.schedule.waits import Wait
from ridgeline.spec.cache import Paged

Events = dict[int, list[tuple[int, int]]]  # (row, tokens), by step of a leap
_NO_COPIES = Copies.none()


def decodes_plan(step: int, request: Long, row: Long, start: Long) -> StepPlan:
    """A step in which these rows decode a token that only the device knows yet. Without its news of block
    tables: who leaps does not read them."""
    num = len(row)
    return StepPlan(step=step, request=request, row=row.astype(np.int32), start=start.astype(np.int32),
                    count=np.ones(num, np.int32), sample=np.full(num, SAMPLE_NEXT, np.uint8),
                    draft=np.zeros(num, np.int32), tokens=np.full(num, PLACEHOLDER, np.int32),
                    num_decodes=num, row_starts=(), tables=(), copies=_NO_COPIES)


class Leaper:
    """Finds how far a leap may go, and takes it."""

    def __init__(self, *, rows: Rows, book: Book, memory: Memory, manager: Manager, policy: Policy,
                 capacity: Capacity) -> None:
        layout = capacity.layout
        self._rows = rows
        self._book = book
        self._memory = memory
        self._manager = manager
        self._policy = policy
        self._block_tokens = layout.block_tokens
        self._num_groups = len(layout.groups)
        self._tiered = capacity.num_host_pages > 1
        self._plain = self._num_groups == 1 and layout.groups[0].kind is Paged

    def course(self, begun: Begun) -> Course | None:
        """Where a leap can go, None where it cannot start."""
        rows, depth = self._rows, len(begun)
        if not begun or not rows.num_running or (stuck := self._stuck()) <= 0:
            return None
        row = (rows.number >= 0).nonzero()[0]
        scheduled, in_flight, end = rows.scheduled[row], rows.in_flight[row], rows.end[row]
        feeds, last = end - scheduled, rows.last_step[row] - begun[0][0]
        late = last + 1 - in_flight
        goes_on = feeds > 0
        wrong = np.minimum(rows.known[row] + in_flight, end) - scheduled != goes_on
        wrong |= (in_flight < 1) | (rows.mark[row] < NO_MARK) | (goes_on & (last < depth - 1))
        for place, (_, taken) in enumerate(begun):
            if taken.draft is not None or np.count_nonzero(taken.takes & (taken.number != rows.number)):
                return None
            wrong |= taken.samples[row] != ((late <= place) & (place <= last))
        if np.count_nonzero(wrong) or not all(map(_is_plain, rows.requests(row[rows.slow[row]]))):
            return None
        stop, most = last + 1 + feeds, self._most(row, scheduled, feeds)
        if self._book.num_waiting:
            most = min(most, stuck, int(stop.min()) - 1)
        return Course(row=row, request=rows.number[row], scheduled=scheduled, last=last, feeds=feeds,
                      late=late, stop=stop, most=most)

    def _most(self, row: Long, scheduled: Long, feeds: Long) -> int:
        """Steps for which there are pages: with those that are free, or until somebody needs one. None that
        is cached where it would have to go to the host first."""
        manager = self._manager
        if not manager.grows:
            return NO_MARK
        free = manager.num_free_pages - (manager.num_cached_pages if self._tiered else 0)
        most = (free // (len(row) * self._num_groups) - 1) * self._block_tokens
        if most < self._block_tokens:
            room = self._rows.reserved[row] - scheduled
            most = max(most, int(np.where(feeds > room, room, NO_MARK).min()))
        return most

    def _stuck(self) -> int:
        """For how many plans all who wait do so for a row, or those who are tried for pages, as the plan
        before has found them; not positive where one may start."""
        book = self._book
        if not book.num_waiting:
            return NO_MARK
        if len(book.queue) < book.num_waiting:
            return 0
        first, last = book.queue.first, book.running.last
        if first.order < last.order and self._policy.outranks(first, last):
            return 0
        if not self._rows.num_free:
            return NO_MARK if book.waits.stands(first, Wait.ROWS) else 0
        alike = self._policy.lines_up and (self._plain or not self._manager.grows)  # no page is dropped
        if not alike or not book.waits.stands(first, Wait.PAGES):
            return 0
        return self._memory.plans_without(book.queue.head(LOOK))

    def take(self, begun: Begun, course: Course, future: Future) -> Landed:
        """Commit as many steps as the future has, more than D, and plan behind what it says."""
        rows, depth, num_steps = self._rows, len(begun), len(future.finished_s)
        at, end, late, first = course.row, course.scheduled, course.late, begun[0][0]
        fed = np.minimum(course.feeds, future.num_plans)
        rows.make_room(int(np.maximum.reduce(rows.known)) + num_steps)
        self._write(at, late, future)
        news = self._reach(begun, course, future)
        used = self._pages(begun, course, future, fed, news)
        stays = course.stop > num_steps
        left = at[stays]
        rows.known[left] += num_steps - late[stays]
        rows.scheduled[left] += fed[stays]
        rows.computed[left] = end[stays] + num_steps - depth
        rows.in_flight[left] = fed[stays] + depth - num_steps
        rows.last_token[left] = future.tokens[-1][stays]
        rows.last_step[left] = first + depth - 1 + fed[stays]
        self._book.counters.num_generated_tokens += int(
            np.add.reduce(np.minimum(course.stop, num_steps) - late))
        self._book.waits.now = float(future.finished_s[-1])
        flown, plans = [], []
        for behind in range(num_steps - depth, int(fed.max())):
            who, step = fed > behind, first + depth + behind
            row, start = at[who], end[who] + behind
            flown.append((step, self._taken(row, start)))
            plans.append(decodes_plan(step, course.request[who], row, start))
        # Who runs when a step has been planned; those who still do D - 1 steps later are in it.
        running = len(at) - np.sort(course.stop).searchsorted(np.arange(1, num_steps + depth), side="right")
        return Landed(
            begun=flown, plans=plans, used_pages=used, news=[one for _, one in sorted(news, key=_step_of)],
            num_rows=running[depth - 1:], running=running[:num_steps])

    def _taken(self, at: Long, start: Long) -> Taken:
        """A step of one decode of each of these rows."""
        rows = self._rows
        takes, until = np.zeros(rows.size, np.bool_), rows.scheduled.copy()
        takes[at], until[at] = True, start + 1
        return Taken(counts=takes.astype(np.int64), takes=takes, until=until, samples=takes,
                     number=rows.number.copy())

    def _write(self, at: Long, late: Long, future: Future) -> None:
        """Tokens and their times into the rows, each from its first on; those behind an end are not read."""
        rows, num_steps = self._rows, len(future.finished_s)
        quick = (late == 0).nonzero()[0]
        row = at[quick]
        place = (row * rows.tokens.shape[1] + rows.known[row])[:, None] + np.arange(num_steps)
        rows.tokens.reshape(-1)[place] = future.tokens.T[quick]  # as one row: cheaper to index
        rows.times_s.reshape(-1)[place] = future.finished_s
        for n in late.nonzero()[0].tolist() if len(quick) < len(at) else ():
            known, since = rows.known[at[n]], late[n]
            rows.tokens[at[n], known:known + num_steps - since] = future.tokens[since:, n]
            rows.times_s[at[n], known:known + num_steps - since] = future.finished_s[since:]

    def _reach(self, begun: Begun, course: Course, future: Future) -> list[tuple[int, Output]]:
        """What the slow way notes of a request whose prompt is computed, and of its first token; its news, by
        step."""
        rows, news = self._rows, []
        for n in rows.slow[course.row].nonzero()[0].tolist():
            row, late = int(course.row[n]), int(course.late[n])
            request = rows.request[row]
            assert request is not None
            for i, (_, taken) in enumerate(begun):
                if taken.takes[row]:
                    start = int(taken.until[row] - taken.counts[row])
                    note_step(request, start, float(future.started_s[i]))
            if request.first_token_s is None:
                request.first_token_s = float(future.finished_s[late])
                if request.max_tokens > 1:
                    token = int(future.tokens[late, n])
                    request.tokens.append(token)
                    request.token_times_s.append(request.first_token_s)
                    news.append((late, request.news((token,))))
            rows.slow[row] = False
        return news

    # ---- pages

    def _pages(self, begun: Begun, course: Course, future: Future, fed: Long,
               news: list[tuple[int, Output]]) -> Long:
        """The conversation with the KV manager that the steps would have had, in their order: who ends gives
        its pages back and what is full is indexed when a step is committed, what comes next gets its pages
        when one is planned. The pages held after each plan [K].

        Where a sequence has pages of one kind and drops none, which row has which page is all one, so that
        each asks once for all that it needs from one end to the next, and is indexed once. Steps that come
        soon after an end, or after what was before the leap, go one by one: pages that somebody dropped are
        free again once the steps then in flight have ended, and prompts' blocks may be cached already. (Of
        pages that are evicted at once, the first one's time is noted.)"""
        manager, depth, num_steps = self._manager, len(begun), len(future.finished_s)
        filled, short = self._filled(begun, course, num_steps), self._short(course.row, fed)
        over = self._over(begun, course, num_steps)
        pace = _Pace(manager, begun, future.finished_s, int(fed.max()))
        added, many, since = np.zeros(num_steps, np.int64), [], 0
        before = manager.num_used_pages
        for i in sorted({*filled, *short, *over}):
            if self._plain and manager.grows and i >= since + depth and i not in over:
                many.append(i)
                added[i] = len(short.get(i, ()))
                continue
            self._at_once(pace, filled, short, many)
            held = manager.num_used_pages
            pace.commit(i)
            for n in over.get(i, ()):
                since = i
                news.append((i, self._end(course, future, n)))
            self._index(filled.get(i, []))
            self._reserve(short.get(i, []))
            added[i] = manager.num_used_pages - held
        self._at_once(pace, filled, short, many)
        pace.end()
        used: Long = before + np.add.accumulate(added)
        assert used[-1] == manager.num_used_pages
        return used

    def _at_once(self, pace: "_Pace", filled: Events, short: Events, many: list[int]) -> None:
        """All of so many steps with events."""
        if many:
            pace.commit(many[0])
            self._reserve(list({row: num for i in many for row, num in short.get(i, ())}.items()))
            self._index(list({row: num for i in many for row, num in filled.get(i, ())}.items()))
            many.clear()

    def _over(self, begun: Begun, course: Course, num_steps: int) -> dict[int, list[int]]:
        """Who ends (n), by step, in the order in which a step's rows are taken: decodes first."""
        found = defaultdict(list)
        ends = (course.stop <= num_steps).nonzero()[0]
        for n, stop, row in zip(ends.tolist(), course.stop[ends].tolist(), course.row[ends].tolist()):
            long = stop <= len(begun) and begun[stop - 1][1].counts[row] > 1
            found[stop - 1].append((long, n))
        return {i: [n for _, n in sorted(who)] for i, who in found.items()}

    def _end(self, course: Course, future: Future, n: int) -> Output:
        """A request has all its tokens with the last that its row was fed for; its last news."""
        rows, row, stop = self._rows, int(course.row[n]), int(course.stop[n])
        request, now = rows.request[row], float(future.finished_s[stop - 1])
        assert request is not None
        rows.known[row] += stop - course.late[n]
        rows.scheduled[row] = rows.computed[row] = rows.end[row]
        rows.last_step[row] += course.feeds[n]
        self._book.waits.now = now
        self._book.finish(request, Finish.LENGTH, now)
        assert request.num_output == request.max_tokens
        return request.news((request.tokens[-1],))

    def _index(self, due: list[tuple[int, int]]) -> None:
        rows = self._rows
        if due:
            self._manager.commit_all([int(rows.number[row]) for row, _ in due], [num for _, num in due],
                                     [rows.tokens[row] for row, _ in due])

    def _reserve(self, need: list[tuple[int, int]]) -> None:
        numbers = [int(self._rows.number[row]) for row, _ in need]
        done = self._manager.reserve_all(numbers, [num for _, num in need])
        assert done == len(need), "a leap has its pages"

    def _filled(self, begun: Begun, course: Course, num_steps: int) -> Events:
        """(row, computed tokens) of rows that fill a block, by the step whose commit does it; not of one with
        which they end, and of none where the next commit of a step can tell as well."""
        found: Events = defaultdict(list)
        block = self._block_tokens
        if not self._manager.follows:
            return found
        due = self._rows.index_at[course.row]
        until = np.minimum(course.stop - 1, num_steps)
        # tokens that are computed once step 0 is committed, and one more with each step from `late` on
        computed = course.scheduled - course.last
        some = (course.late > 0) | (due - computed < until)
        for n in some.nonzero()[0].tolist():
            row, at, since = int(course.row[n]), int(due[n]), int(course.late[n])
            for i, (_, taken) in enumerate(begun[:since]):
                if taken.takes[row] and taken.until[row] >= at:
                    found[i].append((row, int(taken.until[row])))
                    at = (int(taken.until[row]) // block + 1) * block
            first, last = int(computed[n]), int(until[n])
            i = max(at - first, since)
            while i < last:
                found[i].append((row, first + i))
                at = ((first + i) // block + 1) * block
                i = at - first
            self._rows.index_at[row] = at
        return found

    def _short(self, at: Long, fed: Long) -> Events:
        """(row, tokens) of rows that need another block, by the step behind those in flight, by rank."""
        block, rows = self._block_tokens, self._rows
        found: Events = defaultdict(list)
        target = rows.scheduled[at] + fed
        some = target > rows.reserved[at]
        if not np.count_nonzero(some):
            return found
        targets = dict(zip(at[some].tolist(), target[some].tolist(), strict=True))
        for row in rows.by_rank(at[some]).tolist():
            reserved, scheduled = int(rows.reserved[row]), int(rows.scheduled[row])
            while reserved < targets[row]:
                i = max(reserved - scheduled, 0)
                reserved = -(-(scheduled + i + 1) // block) * block
                found[i].append((row, reserved))
            rows.reserved[row] = reserved
        return found


class _Pace:
    """Tells the KV manager of steps that are planned and finished, as far as it must know: when one is
    committed, D are in flight behind it. Its news stays for the plan that comes after the leap. times_s: when
    each ends. num_plans: steps there are to plan."""

    def __init__(self, manager: Manager, begun: Begun, times_s: Seconds, num_plans: int) -> None:
        self._manager, self._times_s, self._num_plans = manager, times_s, num_plans
        self._first, self._depth, self._planned = begun[0][0], len(begun), 0

    def commit(self, place: int) -> None:
        """The place-th step is committed; all before it are, and a step was planned with each."""
        self._plan(place)
        self._manager.step_finished(self._first + place)

    def end(self) -> None:
        """All are committed."""
        self._plan(len(self._times_s))
        self._manager.step_finished(self._first + len(self._times_s) - 1)

    def _plan(self, num: int) -> None:
        if self._planned < (num := min(num, self._num_plans)):
            self._planned = num
            self._manager.close_step(self._first + self._depth + num - 1, {}, float(self._times_s[num - 1]))


def _step_of(news: tuple[int, Output]) -> int:
    return news[0]


def _is_plain(request: Request) -> bool:
    """Its first token needs nothing beside being noted."""
    return request.params.logprobs is None and request.max_tokens > 0 and not request.owes_prompt_logprobs
