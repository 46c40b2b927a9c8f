"""The scheduler: who computes what in each step, and what became of it. It owns all requests of one engine.

It knows no model, no device and no clock: `now` is passed in, pages are the KV manager's (memory.py talks to
it), ranks are the policy's. One step is `plan` (share the token budget, secure pages, admit, assemble) and
later `commit` (take tokens, end requests). plan(n + 1) may come before commit(n): tokens that are being
sampled are placeholders, and what n then ends is trimmed.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.base.errors import ConfigError
from ridgeline.kv.interface import Manager
from ridgeline.schedule.admit import Admission
from ridgeline.schedule.assemble import assemble
from ridgeline.schedule.book import Book
from ridgeline.schedule.budget import share_tokens
from ridgeline.schedule.course import Course, Future, Landed
from ridgeline.schedule.door import Door
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.leap import Leaper
from ridgeline.schedule.memory import Memory
from ridgeline.schedule.overload import Overload
from ridgeline.schedule.plan import StepPlan, StepResult
from ridgeline.schedule.policies.policy import Limits, Policy, View
from ridgeline.schedule.pressure import NO_PRESSURE, Pressure
from ridgeline.schedule.request import Finish, NewRequest, Output, Request
from ridgeline.schedule.rows import Rows, Taken
from ridgeline.schedule.size import StepSize
from ridgeline.schedule.speculate import Speculation
from ridgeline.schedule.take import Taker

Long = NDArray[np.int64]


class Load(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How full the engine is now, in requests and pages; preemptions are counted since the start."""

    running: int
    waiting: int
    used_pages: int
    free_pages: int
    num_preemptions: int


class Scheduler:
    """Plans steps over one KV manager and commits their results. Single-threaded; owned by one loop.

    policy: ranks requests. eos_token_ids: end a text unless ignore_eos. seed: source of the seeds of requests
    that bring none. cache=False is the naive path: every step computes all known tokens of a row again, from
    position 0. speculation: how many drafts the rows verify, None for an executor that drafts nothing. How
    many tokens such a step brings is known when it is committed, so nothing is planned ahead of it. overload:
    what becomes of requests that are certain to be late; None without a deadline. pressure: what a preemption
    costs, and the room that is left when requests start.
    """

    def __init__(self, capacity: Capacity, manager: Manager, policy: Policy, *, max_num_batched_tokens: int,
                 max_num_seqs: int, eos_token_ids: Sequence[int] = (), seed: int = 0,
                 cache: bool = True, speculation: Speculation | None = None,
                 overload: Overload | None = None,
                 pressure: Pressure = NO_PRESSURE) -> None:
        assert speculation is None or cache, "without a cache there is nothing to verify drafts from"
        self._speculation = speculation
        self._overload = overload
        self._news: list[Output] = []
        self._cache = cache
        self._manager = manager
        self._num_pages = capacity.num_pages - 1
        whole_tokens = 0 if cache else capacity.max_model_len
        self._size = StepSize(min(max_num_batched_tokens, capacity.max_step_tokens), max(1, whole_tokens))
        self._rows = Rows(min(max_num_seqs, capacity.num_rows))
        _check_sizes(self._rows.size, self._size.most, whole_tokens)
        most = manager.largest_request(capacity.max_model_len) if cache else _largest_whole(capacity)
        if most < 2:
            raise ConfigError(f"a KV cache of {capacity.num_pages - 1} pages cannot hold a prompt token and "
                              "an answer: set a larger kv_cache_bytes")
        self._door = Door(vocab_size=capacity.vocab_size, max_model_len=capacity.max_model_len,
                          max_request_tokens=most, eos_token_ids=tuple(eos_token_ids),
                          prompt_borders=capacity.prompt_borders)
        self._book = Book(rows=self._rows, manager=manager, policy=policy, door=self._door, index=cache,
                          seed=seed)
        self._memory = Memory(rows=self._rows, book=self._book, manager=manager, policy=policy,
                              capacity=capacity, cache=cache, pressure=pressure)
        self._admission = Admission(rows=self._rows, book=self._book, memory=self._memory, policy=policy,
                                    cache=cache)
        self._taker = Taker(rows=self._rows, book=self._book, size=self._size)
        self._policy = policy
        self._held = 0
        self._leaper = Leaper(rows=self._rows, book=self._book, memory=self._memory, manager=manager,
                              policy=policy, capacity=capacity)
        self._next_step = 0
        self._begun: deque[tuple[int, Taken]] = deque()
        self._committed = -1

    # ---- the door

    @property
    def max_request_tokens(self) -> int:
        """The largest request, prompt and output together, that this engine can run."""
        return self._door.max_request_tokens

    @property
    def max_in_flight(self) -> int | None:
        """Steps that may be planned before the oldest is committed; None: as many as the executor takes."""
        return None if self._cache else 1

    @property
    def has_requests(self) -> bool:
        return bool(self._book.requests)

    @property
    def num_requests(self) -> int:
        """Living choices."""
        return len(self._book.requests)

    def knows(self, request_id: str) -> bool:
        """Whether a choice of this id is alive."""
        return bool(self._book.family(request_id))

    def add(self, new: NewRequest) -> None:
        """Queue a request. RequestError, and nothing kept, when it can never run."""
        self._book.add(new)
        if self._overload is not None:
            self._overload.enter(self._book.family(new.id)[0], self._manager)

    def abort(self, request_id: str, choice: int | None = None, keep_tokens: int | None = None, *,
              now: float) -> list[Output]:
        """End a request, or one choice of it, now; an id that is unknown or over is no error (the news
        crossed).

        keep_tokens: output tokens that count, for a stop string's hit: the choice then ends with STOP, not
        ABORT.
        """
        outputs = []
        self._book.waits.now = now
        for request in self._book.family(request_id):
            if choice is None or request.choice == choice:
                self._book.finish(request, Finish.ABORT if keep_tokens is None else Finish.STOP, now)
                if keep_tokens is not None:
                    self._book.surplus(request, max(0, request.num_output - keep_tokens))
                    del request.tokens[request.num_prompt + keep_tokens:]
                outputs.append(request.news())
        return outputs

    def acknowledge(self, request_id: str) -> None:
        """The cache of a request that leased it (`NewRequest.leases`) has arrived elsewhere."""
        self._book.acknowledge(request_id)

    def take_ended(self) -> list[Request]:
        """Choices that ended since the last call, for the trace."""
        ended = self._book.take_ended()
        if self._overload is not None:
            for request in ended:
                self._overload.leave(request)
        return ended

    def take_news(self) -> list[Output]:
        """News that a plan has made: of requests that were sent away."""
        news, self._news = self._news, []
        return news

    # ---- a step

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None when nothing can be computed before a step in flight comes back."""
        self._book.waits.now = now
        if self._overload is not None:
            self._news += self._overload.judge(self._book, now)
        if not self._book.requests or (self._speculation is not None and self._waits(self._speculation)):
            return None
        self._memory.make_way()
        view = self._view()
        limits = self._policy.limits(view, now)
        counts, draft = self._serve(limits)
        starts = self._admission.admit(counts, limits, view, self._committed, now)
        if self._overload is not None:
            self._overload.started(start.request for start in starts)
        self._held = 0 if limits.rows is None else self._held + 1
        if limits.rows is not None and not np.count_nonzero(counts):
            self._held = 0
            counts, draft = self._serve(msgspec.structs.replace(limits, rows=None))
        self._memory.marks.leave(counts)
        if not np.count_nonzero(counts):
            assert self._begun or self._book.leases, "nothing is in flight and nobody can advance"
            return None
        step, taken = self._next_step, self._rows.take(counts, draft)
        news = self._manager.close_step(step, self._rows.row_of, now)
        plan = assemble(step, self._rows, taken, starts, news)
        self._rows.schedule(taken, step)
        self._begun.append((step, taken))
        self._next_step += 1
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Output]:
        """Take the results of the oldest step begun; the news of every choice that has some."""
        self._book.waits.now = now
        self._committed, taken = self._begun.popleft()
        assert self._committed == plan.step == result.step, "steps are committed in order"
        assert len(result.num_new) == plan.num_rows and np.add.reduce(result.num_new) == len(result.tokens)
        self._manager.return_tickets(result.returned_tickets.tolist())
        broken = self._manager.lose_tickets(result.lost_tickets.tolist())
        self._manager.step_finished(plan.step)
        outputs = self._taker.take(plan, taken, result, now)
        if result.short:
            self._size.lacked(plan.num_tokens)
            self._undo(broken)
        else:
            self._size.went_well()
            outputs += self._fail(broken, now)
        self._memory.index(taken)
        if self._speculation is not None:
            self._speculation.observe(plan, result, ahead=bool(self._begun))
        self._policy.observe(plan, result.finished_s - result.started_s)
        return outputs

    def _fail(self, numbers: Sequence[int], now: float) -> list[Output]:
        """End the living ones of these, whose pages a step that broke was to fill for others."""
        outputs = []
        for request in [self._book.requests[number] for number in numbers if number in self._book.requests]:
            self._book.finish(request, Finish.ERROR, now)
            outputs.append(request.news(error="the step that was to fill its pages failed"))
        return outputs

    def _undo(self, numbers: Sequence[int]) -> None:
        """Those of these that run start again: their pages were to be filled by a step that lacked memory."""
        for request in [self._book.requests[number] for number in numbers if number in self._book.requests]:
            if request.row >= 0:
                self._size.num_undone += 1
                self._book.undo(request)

    def _view(self) -> View:
        return View(rows=self._rows, queue=self._book.queue, most_tokens=self._size.tokens,
                    in_flight=len(self._begun), held=self._held, cached=self._memory.cached)

    def _serve(self, limits: Limits) -> tuple[Long, Long | None]:
        """(tokens, drafts among them) of the rows that run, with pages for them."""
        counts = self._share(limits)
        draft = None if self._speculation is None else self._draft(self._speculation, counts, limits.tokens)
        self._memory.secure(counts)
        if draft is not None:
            draft = np.minimum(draft, np.maximum(counts - 1, 0))  # of rows that pages did not suffice for
        return counts, draft

    def course(self) -> Course | None:
        """Where leap() can go; None where what comes next is not decodes alone."""
        if not self._cache or self._speculation is not None or (
                self._overload is not None and self._book.num_waiting):
            return None
        return self._leaper.course(list(self._begun))

    def leap(self, course: Course, future: Future, plans: Sequence[StepPlan]) -> Landed:
        """Commit the oldest steps begun, more than are in flight, and plan behind what the future says.
        plans: those in flight now. The policy hears of steps with prompts alone."""
        took_s = future.finished_s[:len(plans)] - future.started_s[:len(plans)]
        for plan, one_s in zip(plans, took_s.tolist(), strict=True):
            if plan.num_decodes < plan.num_rows:
                self._policy.observe(plan, one_s)
        self._held = 0
        landed = self._leaper.take(list(self._begun), course, future)
        self._memory.leapt(future.num_plans)
        self._committed += len(future.finished_s)
        self._begun = deque(landed.begun)
        self._next_step = self._committed + 1 + len(landed.begun)
        return landed

    def _waits(self, speculation: Speculation) -> bool:
        """True when what is in flight must be known first: it verifies drafts, or the next step should."""
        if not self._begun:
            return False
        if self._begun[-1][1].draft is not None:
            return True
        return self._choose(speculation, self._rows.pending(), self._size.tokens) is not None

    def _draft(self, speculation: Speculation, counts: Long, most: int) -> Long | None:
        """Drafts by row, added to counts; None when there are none."""
        if self._begun:
            return None
        draft = self._choose(speculation, counts, most)
        if draft is not None:
            counts += draft
        return draft

    def _choose(self, speculation: Speculation, counts: Long, most: int) -> Long | None:
        """Drafts that rows which decode should verify. They take no page that another may need, and pass no
        mark."""
        rows = self._rows
        if not self._memory.spares(speculation.most + 1):
            return None
        room = np.where(counts == 1, np.minimum(rows.end, rows.mark) - rows.scheduled - 1, 0)
        return speculation.choose(rows.scheduled, counts, room, most - int(counts.sum()))

    def _share(self, limits: Limits) -> Long:
        """Tokens by row, [num_rows]: decodes first, then the others by rank."""
        rows = self._rows
        if not self._cache:
            rows.scheduled[:] = rows.computed[:] = 0
        pending = self._memory.marks.cut(rows.pending())
        if limits.rows is not None:
            pending *= limits.rows
        long = pending > (1 if self._cache else 0)
        if rows.size <= limits.tokens and not np.count_nonzero(long):
            return pending
        singles = ((pending > 0) & ~long).nonzero()[0]
        if len(singles) > limits.tokens:  # memory lacked lately: the first in rank go on
            singles = rows.by_rank(singles)
        serving = np.concatenate([singles, rows.by_rank(long.nonzero()[0])])
        counts = np.zeros(rows.size, np.int64)
        counts[serving] = share_tokens(pending[serving], limits.tokens, whole=not self._cache)
        return counts

    # ---- numbers

    def load(self) -> Load:
        """The gauges alone: cheap, for every step's record."""
        return Load(running=self._rows.num_running, waiting=self._book.num_waiting,
                    used_pages=self._manager.num_used_pages, free_pages=self._manager.num_free_pages,
                    num_preemptions=self._book.counters.num_preemptions)

    def stats(self) -> dict[str, int | float | Mapping[str, float]]:
        """Gauges and counters; counts are since the start. num_pages: of the arena, the null page left out,
        used + free + pending (these wait for a step in flight); of the free ones, num_cached_pages hold
        prefixes. waiting, waited_s: choices, and seconds of all choices, by `waits.Wait`. num_out_pages,
        num_back_pages: copied to host memory and back."""
        counters, manager, stats = self._book.counters, self._manager, self._manager.stats
        return {
            "num_running": self._rows.num_running, "num_waiting": self._book.num_waiting,
            "kv_usage": manager.usage, "num_used_pages": manager.num_used_pages,
            "num_free_pages": manager.num_free_pages, "num_pages": self._num_pages,
            "num_cached_pages": manager.num_cached_pages, "num_pending_pages": manager.num_pending_pages,
            "waiting": {str(reason): num for reason, num in self._book.waits.counts.items()},
            "waited_s": {str(reason): spent_s for reason, spent_s in self._book.waits.seconds().items()},
            "num_steps": self._committed + 1,
            "num_requests": counters.num_requests, "num_preemptions": counters.num_preemptions,
            "num_prompt_tokens": counters.num_prompt_tokens, "num_cached_tokens": counters.num_cached_tokens,
            "num_generated_tokens": counters.num_generated_tokens,
            "num_recomputed_tokens": counters.num_recomputed_tokens,
            "num_surplus_tokens": counters.num_surplus_tokens, "finished": dict(counters.finished),
            "num_swaps": counters.num_swaps, "num_host_hit_tokens": stats.num_host_hit_tokens,
            "num_out_pages": stats.num_out_pages, "num_back_pages": stats.num_back_pages,
            **self._size.stats(),
            **({} if self._speculation is None else self._speculation.stats()),
            **({} if self._overload is None else self._overload.stats()),
        }

    def check(self) -> None:
        """Invariants of rows, book and pages; AssertionError on any difference. Slow: for tests and idle
        moments."""
        self._book.check()
        self._manager.check()
        assert np.all(self._rows.last_step < self._next_step)
        assert [step for step, _ in self._begun] == list(range(self._committed + 1, self._next_step))


def _check_sizes(num_rows: int, max_tokens: int, whole_tokens: int) -> None:
    """A step must hold a token for every row, or (whole_tokens > 0) everything of the longest one."""
    if num_rows < 1:
        raise ConfigError("max_num_seqs is below 1: set it to at least 1")
    if max_tokens < max(num_rows, whole_tokens):
        reason = f"without a cache and with a context of {whole_tokens}" if whole_tokens > num_rows else \
            f"for {num_rows} sequences"
        raise ConfigError(f"a step of {max_tokens} tokens is too small {reason}: "
                          f"set max_num_batched_tokens to at least {max(num_rows, whole_tokens)}")


def _largest_whole(capacity: Capacity) -> int:
    """The largest request whose every token has a page at once: what the naive path writes in each step."""
    sizes = [group.tokens_per_page for group in capacity.layout.groups if group.tokens_per_page]

    def pages(num_tokens: int) -> int:
        return sum(-(-num_tokens // size) for size in sizes)

    return bisect_right(range(1, capacity.max_model_len + 1), capacity.num_pages - 1, key=pages)
