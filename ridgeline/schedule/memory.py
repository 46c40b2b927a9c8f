"""Pages for the rows of a step: the scheduler's conversation with the KV manager, and who is preempted when
they lack.

Who is preempted: among those behind the one that lacks pages, of the lowest class there is (whom the policy
lets outrank nobody of the others), the one that has computed least of those that hold enough. What it costs
to bring a victim back, by computing or by copying, grows with what it has computed, so the least computed is
the cheapest, at whatever prices.

No livelock: pages are given strictly by rank, a row that lacks pages takes them from lower ranks only, and
nobody is admitted while a row lacks any. Which of the lower ranks gives way does not matter to the argument:
the first in rank is never a victim and finds every page that others hold, so it always advances, and the rank
of a request changes at the most while it waits (`admit`). When it has ended, the next is first: everybody
ends.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ridgeline.kv.interface import Manager
from ridgeline.kv.why import LAST
from ridgeline.schedule.book import Book
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.forecast import peak_pages
from ridgeline.schedule.marks import Marks
from ridgeline.schedule.policies.policy import Policy
from ridgeline.schedule.pressure import Pressure
from ridgeline.schedule.request import Request
from ridgeline.schedule.rows import Rows, Taken

Long = NDArray[np.int64]


class Memory:
    """Secures pages for running rows, opens sequences for waiting requests, tells the index of full blocks.

    cache=False: rows are written whole from position 0 in each step, so nothing is reused, indexed or cut.
    pressure: how victims come back, and what stays free.
    """

    def __init__(self, *, rows: Rows, book: Book, manager: Manager, policy: Policy, capacity: Capacity,
                 cache: bool, pressure: Pressure) -> None:
        layout = capacity.layout
        self._rows = rows
        self._book = book
        self._manager = manager
        self._policy = policy
        self._cache = cache
        self._block_tokens = layout.block_tokens
        self._pressure = pressure
        self._page_bytes = layout.page_bytes
        self._watermark = -(-pressure.watermark_bytes // layout.page_bytes)
        self._expected = np.zeros(rows.size, np.int64)  # positions of each row in the end
        longest = -(-capacity.max_model_len // self._block_tokens)
        self._pages = np.array([manager.pages_to_run(blocks * self._block_tokens)
                                for blocks in range(longest + 1)] if manager.grows else [0], np.int64)
        self._num_plans = 0
        self.marks = Marks(rows, manager, any_state=any(group.state_pages for group in layout.groups))
        self._starved = False
        self._refused: set[int] = set()  # requests that did not fit in ...
        self._refused_room = 0  # ... so many pages
        self._refused_plan = 0  # ... when that many plans had been made

    # ---- rows that run

    def make_way(self) -> None:
        """Preempt from the end of the rank for the first in the queue, where the policy lets it outrank."""
        book, manager = self._book, self._manager
        while book.queue and book.running:
            first = book.queue.first
            last = book.running.last
            if last.order < first.order or not self._policy.outranks(first, last):
                return
            lacking = self._lacking(first, self._here(first)) - manager.num_pending_pages
            if self._rows.num_free and lacking <= 0:
                return
            if lacking > 0 and book.drop_elders():
                continue
            below = [running for running in book.running.after(first)
                     if self._policy.outranks(first, running)]
            self._preempt(self._victim(below, lacking))

    def spares(self, num_tokens: int) -> bool:
        """Whether each running row can have pages for so many more tokens at nobody's cost."""
        return self._manager.num_free_pages >= self._rows.num_running * self._manager.pages_to_run(num_tokens)

    def secure(self, counts: Long) -> None:
        """Writable pages for counts [num_rows], by rank; whoever cannot have them all gets fewer tokens or
        none."""
        rows = self._rows
        self._starved = False
        self._num_plans += 1
        target = rows.scheduled + counts
        need = (target > rows.reserved).nonzero()[0]
        if not len(need):
            return
        need = rows.by_rank(need)
        ends = -(-target[need] // self._block_tokens) * self._block_tokens
        done = self._manager.reserve_all(rows.number[need].tolist(), ends.tolist())
        rows.reserved[need[:done]] = ends[:done]
        for row in need[done:].tolist():
            request = rows.request[row]
            if request is not None:
                counts[row] = 0 if self._starved else self._secure_row(request, int(counts[row]), counts)

    def _secure_row(self, request: Request, count: int, counts: Long) -> int:
        """How many of `count` tokens get pages, at the cost of lower ranks. A row that lacks some starves the
        step.

        Pages that a step in flight gives back suffice: then the row waits for them rather than preempt one
        more.
        """
        manager, number = self._manager, request.number
        start = int(self._rows.scheduled[request.row])
        while not self._reserve(request, start + count):
            below = self._book.running.after(request)
            missing = manager.missing_pages(number, start + count) - manager.num_pending_pages
            if missing > 0 and self._book.drop_elders():
                continue
            if below and missing > 0:
                victim = self._victim(below, missing)
                counts[victim.row] = 0
                self._preempt(victim)
                continue
            self._starved = True
            count = manager.reservable(number, start + count) - start if self._cache else 0
            if count <= 0:
                return 0
        return count

    def _victim(self, below: list[Request], num_pages: int) -> Request:
        """Who of these gives way, in order of rank, for so many pages: see above. When nobody holds enough,
        who holds most for what it has computed, and the caller asks again."""
        last, scheduled = below[-1], self._rows.scheduled.tolist()
        peers = [running for running in reversed(below) if not self._policy.outranks(running, last)]
        peers.sort(key=lambda running: scheduled[running.row])  # the later in rank of two that cost the same
        best, most = last, -1.0
        for running in peers:
            own = self._manager.own_pages(running.number)
            if own >= num_pages:
                return running
            worth = own / max(1, scheduled[running.row])
            if worth > most:
                best, most = running, worth
        return best

    def _preempt(self, victim: Request) -> None:
        """By swap or to be computed again, as prices say. Whoever has been given all its tokens ends with
        the step in flight, and nothing of it is needed again."""
        scheduled = int(self._rows.scheduled[victim.row])
        pages = self._manager.pages_to_run(scheduled)
        swap = scheduled < victim.end and self._cache and victim.params.pool != "mean" \
            and self._pressure.swaps(scheduled, pages * self._page_bytes)
        self._book.preempt(victim, swap=swap)

    def _reserve(self, request: Request, target: int) -> bool:
        """reserve() up to the end of the block, so that the manager need not be asked again before it."""
        end = self._block_end(target)
        if not self._manager.reserve(request.number, end):
            return False
        if request.row >= 0:
            self._rows.reserved[request.row] = end
        return True

    def _block_end(self, target: int) -> int:
        return -(-target // self._block_tokens) * self._block_tokens

    def leapt(self, num_plans: int) -> None:
        """So many plans were made in which every row had its pages."""
        self._starved = False
        self._num_plans += num_plans

    # ---- requests that wait

    def plans_without(self, requests: Iterable[Request]) -> int:
        """How many plans will find no room for these, while those that run go on and take more pages: 0 where
        the next may."""
        if self._starved or self._manager.num_pending_pages or not self._book.running \
                or self._room() > self._refused_room \
                or not all(request.number in self._refused for request in requests):
            return 0
        return self._refused_plan + self._block_tokens - 1 - self._num_plans

    def open(self, request: Request, left: int) -> tuple[int, int]:
        """(tokens found in the cache, tokens to compute now, at most left) with pages for both; or (0, 0) and
        nothing held, when the request must wait."""
        manager, alone, room = self._manager, not self._book.running, self._room()
        later = self._num_plans >= self._refused_plan + self._block_tokens
        if room > self._refused_room or alone or later:
            self._refused.clear()
        if self._starved or request.number in self._refused:
            return 0, 0
        if request.away:
            kept = manager.kept_away(request.number)
            if kept is None:
                return 0, 0
            if kept:
                return self._resume(request, kept, left, alone)
            self._book.give_up(request)
        computed = self._fork(request) or manager.open(
            request.number, request.known, request.cache_salt, self._reuse_limit(request), request.end)
        found, count = computed, 0
        if self._import(request, computed, alone):
            computed = max(computed, request.imported)
            count = self._first_chunk(request, computed, left, alone)
        if count:
            if request.first_scheduled_s is None:
                request.reuse_limit = self._why_not_more(request, found)
            return computed, count
        manager.release(request.number)
        if self._book.drop_elders():
            return self.open(request, left)
        self._refuse(request)
        return 0, 0

    def cached(self, request: Request) -> int:
        """Tokens of a waiting request that the cache holds."""
        return self._manager.lookup(request.known, request.cache_salt, self._reuse_limit(request))

    def _here(self, request: Request) -> int:
        """Tokens of a waiting request that have pages on the device."""
        return 0 if request.away else self._manager.lookup(
            request.known, request.cache_salt, self._reuse_limit(request), host=False)

    def _resume(self, request: Request, kept: int, left: int, alone: bool) -> tuple[int, int]:
        """open() of a request whose first `kept` tokens wait in host memory."""
        self._manager.commit(request.number, kept, request.known)
        count = self._first_chunk(request, kept, left, alone)
        if not count:
            self._refuse(request)
            return 0, 0
        request.away = False
        return kept, count

    def _refuse(self, request: Request) -> None:
        """It is not tried again before there is more room, or what runs has grown by a block."""
        if not self._refused:
            self._refused_plan = self._num_plans
        self._refused.add(request.number)
        self._refused_room = self._room()

    def opened(self, request: Request, count: int) -> None:
        """`request` has the row now, in which it computes `count` tokens first."""
        rows, row = self._rows, request.row
        computed = int(rows.computed[row])
        rows.reserved[row] = self._block_end(computed + count)
        rows.index_at[row] = self._block_end(computed + 1)
        rows.mark[row] = computed + self.marks.first(request.number, computed)
        self._expected[row] = self._expect(request)

    def _first_chunk(self, request: Request, computed: int, left: int, alone: bool) -> int:
        """Tokens of an opened sequence that get budget and pages; 0 when it should wait.

        Beside others it starts only when it fits; alone with whatever does.
        """
        away = self._manager.num_away_pages(request.number)
        want = min(len(request.tokens), request.end) - computed
        count = min(want, left, self.marks.first(request.number, computed))
        if count < want and not self._cache:
            return 0
        if not alone and not self._fits(request, computed, away):
            return 0
        if alone and self._cache:
            count = self._manager.reservable(request.number, computed + count) - computed
        return count if count > 0 and self._reserve(request, computed + count) else 0

    def _fits(self, request: Request, computed: int, away: int) -> bool:
        """Whether a request may start beside those that run: all that is known of it has room now, and, as
        far as can be told, so has everybody's answer to its end. Of `computed` tokens all pages are here but
        so many that are away."""
        return self._lacking(request, computed) + away <= 0 and self._foreseen(request, computed, away)

    def _import(self, request: Request, computed: int, alone: bool) -> bool:
        """Pages for the cache that comes with a request, beyond what is cached here; False when there are not
        enough, and it should wait."""
        if request.imported <= computed:
            return True
        away = self._manager.num_away_pages(request.number)
        fits = alone or self._lacking(request, computed) + away <= 0
        if not fits or not self._reserve(request, request.imported):
            return False
        self._manager.commit(request.number, request.imported, request.known)
        return True

    def _fork(self, request: Request) -> int:
        """Share the prompt of a sibling that has computed it, also of one that has ended; tokens shared, 0
        (and nothing opened) without one."""
        shared = request.num_shared
        if not self._cache or request.num_output or request.owes_prompt_logprobs or not shared:
            return 0
        for parent in self._parents(request):
            if got := self._manager.fork(parent, request.number, shared):
                return got
            self._manager.release(request.number)
        return 0

    def _parents(self, request: Request) -> Iterator[int]:
        """Sequences that have computed what it shares: of one that has ended, then of those that run."""
        if (elder := self._book.elders.get(request.id)) is not None:
            yield elder
        for sibling in self._book.family(request.id):
            computed = int(self._rows.computed[sibling.row]) if sibling.row >= 0 else 0
            if computed > request.num_shared:
                self._manager.commit(sibling.number, computed, self._rows.tokens[sibling.row])
                yield sibling.number

    def _reuse_limit(self, request: Request) -> int:
        """Most tokens that may come from the cache: one position at least is computed, and so is every one
        whose log-probabilities are still owed, or whose hidden states are asked for."""
        if not self._cache or request.params.pool == "mean":
            return 0
        limit = min(len(request.tokens), request.end) - 1
        return min(limit, request.prompt_logprobs_from - 1) if request.owes_prompt_logprobs else limit

    def _why_not_more(self, request: Request, reused: int) -> str:
        """Why no more than so many of its tokens were found, for its account."""
        if not self._cache:
            return "the cache is off"
        if request.params.pool == "mean":
            return "hidden states asked"
        if reused >= request.num_shared:
            return LAST
        if request.owes_prompt_logprobs and reused == self._reuse_limit(request):
            return "prompt logprobs asked"
        return self._manager.why_not_more(request.number, request.known)

    def _room(self) -> int:
        """Free pages beyond the watermark and one for each row that runs, its next."""
        return self._manager.num_free_pages - len(self._book.running) - self._watermark

    def _lacking(self, request: Request, computed: int) -> int:
        """Pages by which the room is too small for all that is known of a request, negative when it is
        not."""
        need = self._manager.pages_to_run(len(request.tokens) + 1) - self._manager.pages_to_run(computed)
        return need - self._room()

    # ---- what is to come

    def _expect(self, request: Request) -> int:
        """Positions that a request will have taken in the end."""
        produced = request.num_output if request.row < 0 else int(
            self._rows.known[request.row]) - request.num_prompt
        return request.num_prompt + self._book.outputs.expect(request.tenant, produced, request.max_tokens)

    def _foreseen(self, request: Request, reused: int, away: int) -> bool:
        """Whether the answers of all that run and of this one, of which `reused` tokens have pages but for so
        many that are away, will find room to their ends. Pages that a step in flight still holds will be
        free."""
        manager, rows, size = self._manager, self._rows, self._block_tokens
        if not manager.grows or not self._cache:
            return True
        room = manager.num_free_pages + manager.num_pending_pages - self._watermark
        if (rows.num_running + 1) * (self._pages[-1] + self._pages[1]) <= room:  # whatever there is
            return True
        most = np.add.reduce(self._pages[-(-rows.end // size)]) + self._pages[-(-request.end // size)]
        if most + (rows.num_running + 1) * self._pages[1] <= room:  # whatever they answer, to the block's end
            return True
        live = (rows.number >= 0).nonzero()[0]
        for row in live[rows.known[live] >= self._expected[live]].tolist():
            if (running := rows.request[row]) is not None:
                self._expected[row] = self._expect(running)
        known = np.append(rows.known[live], len(request.tokens))
        left = np.append(self._expected[live], self._expect(request)) - known
        held = self._pages[-(-np.append(rows.reserved[live], reused) // size)]
        held[-1] -= min(away, held[-1])
        kept = self._pages[np.append(rows.num_cached[live], reused) // size]
        peak = peak_pages(self._pages, known, np.maximum(left, 0), held, np.minimum(kept, held),
                          block_tokens=size)
        return peak <= room

    # ---- what is computed

    def index(self, taken: Taken) -> None:
        """Tell the manager of rows that filled a block: it becomes findable, and windows move on."""
        if not self._cache:
            return
        rows = self._rows
        ours = taken.takes & (rows.number == taken.number)
        due = (ours & (rows.computed >= rows.index_at)).nonzero()[0]
        if len(due):
            computed = rows.computed[due]
            self._manager.commit_all(rows.number[due].tolist(), computed.tolist(),
                                     [rows.tokens[row] for row in due.tolist()])
            rows.index_at[due] = (computed // self._block_tokens + 1) * self._block_tokens
