"""A deterministic executor that checks every plan against a shadow arena, and a harness around the real loop.

The fake model's next token is a function of (history, seed, position). Each page slot of the shadow arena
holds a digest of the history up to its position, so a read of a stale, shared or wrong page shows at once.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ridgeline.base.clock import VirtualClock
from ridgeline.base.trace import RingTrace
from ridgeline.kv.interface import Manager
from ridgeline.kv.manager import KVManager
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.overload import Overload
from ridgeline.schedule.plan import (
    PLACEHOLDER,
    SAMPLE_NEXT,
    UNDONE,
    Drafting,
    RowLogprobs,
    RowStart,
    StepPlan,
    StepResult,
)
from ridgeline.schedule.policies.policy import Needs
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.pressure import NO_PRESSURE, Pressure
from ridgeline.schedule.request import Finish, NewRequest, Output
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.schedule.speculate import Speculation
from ridgeline.schedule.targets import Targets
from ridgeline.spec.cache import CacheLayout, CacheSpec, Paged, Window, plan_layout
from ridgeline.spec.sampling import SamplingParams

VOCAB = 40
EOS = (0, 7)
NEEDS = Needs(targets=Targets(ttft_s=9.0, tpot_s=1.5), price=lambda step: 0.9 + int(step.count.sum()) / 40)
LAYERS: dict[str, list[tuple[CacheSpec, ...]]] = {
    "paged": [(Paged(bytes_per_entry=64),)] * 2,
    "window": [(Window(bytes_per_token=64, window_tokens=6),)] * 2,
    "mixed": [(Paged(bytes_per_entry=64),)] * 2 + [(Window(bytes_per_token=64, window_tokens=7),)],
}


def layout_of(kind: str, block_tokens: int = 4) -> CacheLayout:
    return plan_layout(LAYERS[kind], block_tokens=block_tokens)


def digest(before: int, token: int) -> int:
    """One link of a history's digest; integers only, so it is the same in every process."""
    return hash((before, token))


def digests(tokens: Sequence[int], before: Sequence[int] = ()) -> list[int]:
    """The digest after each token; `before` are those of the tokens before."""
    found, value = list(before), before[-1] if before else 0
    for token in tokens:
        value = digest(value, token)
        found.append(value)
    return found


def sample(history_digest: int, position: int, num_prompt: int, seed: int, params: SamplingParams,
           stops: Sequence[int]) -> int:
    """The fake model: the token at `position`. End ids come about one time in ten, masked among the first
    min_tokens."""
    token = hash((history_digest, seed, position)) % (VOCAB + 2)
    token = token if token < VOCAB else EOS[token - VOCAB]
    while token in stops and position - num_prompt < params.min_tokens:
        token = (token + 1) % VOCAB
    return token


def expected(prompt: Sequence[int], params: SamplingParams, seed: int,
             most: int) -> tuple[list[int], Finish]:
    """What one choice alone must give: its output tokens and why it ends. most: prompt and output
    together."""
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(EOS))
    limit = most - len(prompt) if params.max_tokens is None else min(params.max_tokens, most - len(prompt))
    output: list[int] = []
    value = digests(prompt)[-1]
    while len(output) < limit:
        output.append(sample(value, len(prompt) + len(output), len(prompt), seed, params, sorted(stops)))
        value = digest(value, output[-1])
        if output[-1] in stops and len(output) > params.min_tokens:
            return output, Finish.STOP
    return output, Finish.LENGTH


@dataclass
class _Row:
    start: RowStart
    history: list[int]
    digests: list[int]

    def sample(self) -> int:
        start = self.start
        return sample(self.digests[-1], len(self.history), len(start.prompt), start.seed, start.params,
                      start.stop_token_ids)

    def append(self, token: int) -> None:
        self.history.append(token)
        self.digests.append(digest(self.digests[-1], token))


@dataclass
class FakeExecutor:
    """Runs plans in order, each when it is finished.

    speculate: drafts that it has for each row at the most, 0 for an executor that drafts nothing.
    fail: rows (indices into the plan) that fail in a plan; undo: rows that lack memory. lose: plans that
    raise before anything is done, and short: those that lack memory before; blow_up: an exception for a plan,
    raised in finish() after the device has done its work, or None."""

    layout: CacheLayout
    num_pages: int
    num_rows: int = 8
    max_step_tokens: int = 64
    max_model_len: int = 128
    max_in_flight: int = 2
    speculate: int = 0
    num_host_pages: int = 0
    fail: Callable[[StepPlan], Sequence[int]] = lambda plan: ()
    blow_up: Callable[[StepPlan], Exception | None] = lambda plan: None
    lose: Callable[[StepPlan], bool] = lambda plan: False
    undo: Callable[[StepPlan], Sequence[int]] = lambda plan: ()
    short: Callable[[StepPlan], bool] = lambda plan: False
    clock: VirtualClock | None = None
    plans: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._queue: list[tuple[int, StepPlan]] = []
        self._rows: dict[int, _Row] = {}
        self._tables: list[dict[tuple[int, int], int]] = [{} for _ in self.layout.groups]
        self._spaces: list[dict[int, dict[int, tuple[int, int]]]] = [defaultdict(dict), defaultdict(dict)]
        self._arena = self._spaces[0]
        self._num_begun = 0
        self._lost: set[int] = set()

    def capacity(self) -> Capacity:
        return Capacity(
            layout=self.layout, num_pages=self.num_pages, num_rows=self.num_rows, vocab_size=VOCAB,
            max_step_tokens=self.max_step_tokens, max_model_len=self.max_model_len,
            num_host_pages=self.num_host_pages)

    def begin(self, plan: StepPlan, now: float) -> int:
        assert len(self._queue) < self.max_in_flight
        self._queue.append((self._num_begun, plan))
        self._num_begun += 1
        self.plans.append(plan)
        return self._num_begun - 1

    def ready_at(self, ticket: int) -> float | None:
        return None

    def finish(self, ticket: int, now: float) -> StepResult:
        number, plan = self._queue.pop(0)
        assert number == ticket, "tickets are finished in the order begun"
        if self.clock is not None:
            self.clock.advance_to(self.clock.now() + 1.0)
        if self.lose(plan):
            self._lost.update(plan.request.tolist())
            raise RuntimeError("lost")
        if self.short(plan):
            self._lost.update(plan.request.tolist())
            raise MemoryError("no room")
        result = msgspec.structs.replace(self._run(plan), started_s=now, finished_s=now + 1.0)
        error = self.blow_up(plan)
        if error is not None:
            raise error
        return result

    # ---- one step

    def _run(self, plan: StepPlan) -> StepResult:
        self._check_shape(plan)
        for start in plan.row_starts:
            assert 0 <= start.row < self.num_rows
            self._lost.discard(start.request)
            history = [*start.prompt.tolist(), *start.output.tolist()]
            self._rows[start.row] = _Row(start, history, digests(history))
        for table, news in zip(self._tables, plan.tables):
            for row, index, page in zip(news.row.tolist(), news.index.tolist(), news.page.tolist()):
                assert 0 <= page < self.num_pages
                table[row, index] = page
        copies, sizes = plan.copies, (self.num_pages, self.num_host_pages)
        for from_space, source, to_space, target in zip(
                copies.source_space.tolist(), copies.source.tolist(), copies.target_space.tolist(),
                copies.target.tolist()):
            assert 0 < source < sizes[from_space] and 0 < target < sizes[to_space]
            assert (from_space, source) != (to_space, target)
            self._spaces[to_space][target] = dict(self._spaces[from_space][source])
        undone = list(self.undo(plan))
        self._lost.update(plan.request[undone].tolist())
        self._write(plan)
        self._read(plan)
        result = self._sample(plan)
        result.failed[undone] = UNDONE
        return msgspec.structs.replace(result, short=bool(undone))

    def _check_shape(self, plan: StepPlan) -> None:
        assert plan.num_rows > 0 and plan.num_tokens == int(plan.count.sum()) <= self.max_step_tokens
        assert len(set(plan.row.tolist())) == plan.num_rows and np.all(plan.count > 0)
        assert plan.draft.max() <= self.speculate and not plan.draft[plan.num_decodes:].any()
        decodes = (plan.count - plan.draft == 1) & (plan.sample == SAMPLE_NEXT)
        assert plan.num_decodes == decodes.sum() and decodes[:plan.num_decodes].all(), "decodes come first"
        assert np.all(plan.start + plan.count <= self.max_model_len)
        assert len({start.row for start in plan.row_starts}) == len(plan.row_starts)
        assert {start.row for start in plan.row_starts} <= set(plan.row.tolist()), "a row starts with work"

    def _spans(self, plan: StepPlan) -> list[tuple[int, _Row, int, int, list[int]]]:
        """(index, row, first position, end without drafts, drafts) of each row of the plan, but those whose
        past was lost."""
        return [(i, self._rows[row], start, start + count - draft, self._drafts(self._rows[row], draft))
                for i, (row, start, count, draft) in enumerate(zip(
                    plan.row.tolist(), plan.start.tolist(), plan.count.tolist(), plan.draft.tolist()))
                if int(plan.request[i]) not in self._lost]

    def _drafts(self, row: _Row, most: int) -> list[int]:
        """Some right ones, and perhaps a wrong one and what comes after it; fewer than there are slots, at
        times."""
        guess = _Row(row.start, list(row.history), list(row.digests))
        while len(guess.history) < len(row.history) + most - row.digests[-1] % 2:
            guess.append((guess.sample() + (guess.digests[-1] % 4 == 0)) % VOCAB)
        return guess.history[len(row.history):]

    def _slot(self, group: int, row: _Row, position: int) -> tuple[int, int]:
        size = self.layout.groups[group].tokens_per_page
        page = self._tables[group].get((row.start.row, position // size), 0)
        assert page, f"group {group}: no page for position {position} of request {row.start.request}"
        return page, position % size

    def _write(self, plan: StepPlan) -> None:
        """All rows write before any reads, as a layer does."""
        offsets = (np.cumsum(plan.count) - plan.count).tolist()
        for index, row, first, end, drafts in self._spans(plan):
            assert row.start.request == plan.request[index], "the row belongs to another request"
            given = plan.tokens[offsets[index]:offsets[index] + end - first].tolist()
            slots = plan.tokens[offsets[index] + end - first:offsets[index] + plan.count[index]]
            assert np.all(slots == PLACEHOLDER), "drafts are the executor's"
            assert PLACEHOLDER not in given[:-1], "only the row's last token can be a placeholder"
            want = row.history[first:end]
            assert len(want) == end - first, "a token that nobody has sampled yet"
            assert given[:-1] == want[:-1] and given[-1] in (want[-1], PLACEHOLDER)
            if given[-1] == PLACEHOLDER:
                assert end == len(row.history) > len(row.start.prompt), "the host knows this token"
            written = digests(drafts, row.digests)
            for group in range(len(self.layout.groups)):
                for position in range(first, end + len(drafts)):
                    page, slot = self._slot(group, row, position)
                    self._arena[page][slot] = (group, written[position])

    def _read(self, plan: StepPlan) -> None:
        for _, row, first, end, drafts in self._spans(plan):
            written = digests(drafts, row.digests)
            for group, spec in enumerate(self.layout.groups):
                low = 0 if spec.window_tokens is None else max(0, first - spec.window_tokens + 1)
                for position in range(low, end + len(drafts)):
                    page, slot = self._slot(group, row, position)
                    assert self._arena[page].get(slot) == (group, written[position]), (
                        f"group {group}: position {position} of request {row.start.request} holds other text")

    def _sample(self, plan: StepPlan) -> StepResult:
        failed = np.zeros(plan.num_rows, np.uint8)
        failed[list(self.fail(plan))] = 1
        failed[[request in self._lost for request in plan.request.tolist()]] = 1
        tokens: list[int] = []
        num_new, compared, ready = np.zeros((3, plan.num_rows), np.int32)
        logprobs, prompt_logprobs = {}, {}
        for index, row, first, end, drafts in self._spans(plan):
            params, start = row.start.params, row.start
            if params.prompt_logprobs is not None and not failed[index]:
                low, high = max(start.prompt_logprobs_from, first + 1), min(end, len(start.prompt) - 1)
                owed = [(p, _scored(row.history[p])) for p in range(low, high + 1)]
                if owed:
                    prompt_logprobs[index] = owed
            if plan.sample[index] != SAMPLE_NEXT:
                continue
            assert end == len(row.history), "a row samples after its last token only"
            for draft in (*drafts, None):
                row.append(row.sample())
                if row.history[-1] != draft:
                    break
            if failed[index]:
                continue
            new = row.history[end:]
            tokens += new
            num_new[index], compared[index], ready[index] = len(new), len(drafts), self.speculate
            if params.logprobs is not None:
                logprobs[index] = [_scored(token) for token in new]
        drafting = Drafting(compared=compared, agreed=np.maximum(num_new - 1, 0), ready=ready, seconds=0.0)
        return StepResult(
            drafting=drafting if self.speculate else None,
            step=plan.step, num_new=num_new, tokens=np.array(tokens, np.int32), failed=failed,
            errors=dict.fromkeys(np.flatnonzero(failed).tolist(), "broken on purpose"), logprobs=logprobs,
            prompt_logprobs=prompt_logprobs, returned_tickets=plan.copies.ticket)


def _scored(token: int) -> RowLogprobs:
    return RowLogprobs(token_ids=np.array([token], np.int32), logprobs=np.array([-1.0], np.float32), rank=0)


@dataclass
class Told:
    """All news of one choice, joined."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[RowLogprobs] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, RowLogprobs]] = field(default_factory=list)
    last: Output | None = None


class Harness:
    """The real scheduler, manager and loop over a FakeExecutor, with every invariant checked after every
    step."""

    def __init__(self, kind: str = "paged", *, num_pages: int = 33, num_rows: int = 8,
                 max_step_tokens: int = 64, max_model_len: int = 128, depth: int = 2, policy: str = "fcfs",
                 cache: bool = True, prefix_caching: bool = True, block_tokens: int = 4, check: bool = True,
                 speculate: int = 0, manager: Manager | None = None, overload: Overload | None = None,
                 num_host_pages: int = 0, pressure: Pressure = NO_PRESSURE,
                 fail: Callable[[StepPlan], Sequence[int]] = lambda plan: (),
                 lose: Callable[[StepPlan], bool] = lambda plan: False,
                 undo: Callable[[StepPlan], Sequence[int]] = lambda plan: (),
                 short: Callable[[StepPlan], bool] = lambda plan: False,
                 blow_up: Callable[[StepPlan], Exception | None] = lambda plan: None) -> None:
        self.clock = VirtualClock()
        self.executor = FakeExecutor(
            layout_of(kind, block_tokens), num_pages, num_rows=num_rows, max_step_tokens=max_step_tokens,
            max_model_len=max_model_len, max_in_flight=depth, speculate=speculate,
            num_host_pages=num_host_pages, fail=fail, lose=lose, undo=undo, short=short,
            blow_up=blow_up, clock=self.clock)
        self.manager = manager or KVManager(self.executor.layout, num_pages,
                                            prefix_caching=prefix_caching and cache,
                                            num_host_pages=num_host_pages)
        self.scheduler = Scheduler(
            self.executor.capacity(), self.manager, make_policy(policy, NEEDS), eos_token_ids=EOS,
            cache=cache, max_num_batched_tokens=max_step_tokens, max_num_seqs=num_rows, overload=overload,
            speculation=Speculation(num_rows, speculate, lambda step: 1.0) if speculate else None,
            pressure=pressure)
        self.trace = RingTrace()
        self.loop = Loop(self.scheduler, self.executor, self.clock, self.trace)
        self.told: dict[tuple[str, int], Told] = defaultdict(Told)
        self._check = check

    def add(self, name: str, prompt: Sequence[int], params: SamplingParams | None = None, *,
            priority: int = 0, salt: str = "", tenant: str = "") -> None:
        self.loop.add(NewRequest(
            id=name, prompt=np.array(prompt, np.int32), params=params or SamplingParams(seed=1, max_tokens=8),
            priority=priority, cache_salt=salt, tenant=tenant, arrived_s=self.clock.now()))

    def step(self) -> list[Output]:
        outputs = self.loop.step()
        for output in outputs:
            told = self.told[output.id, output.choice]
            assert told.last is None, "news after the last news"
            told.tokens += output.new_tokens
            told.logprobs += output.logprobs
            told.prompt_logprobs += output.prompt_logprobs
            if output.finish is not None:
                told.last = output
            else:
                assert output.num_output == len(told.tokens)
        if self._check:
            self.loop.check()
        return outputs

    def run(self, most_steps: int = 4000) -> None:
        """Until idle; then nothing may be left behind."""
        for _ in range(most_steps):
            if self.loop.idle():
                break
            self.step()
        assert self.loop.idle(), f"not idle after {most_steps} steps: {self.loop.stats()}"
        self.assert_clean()

    def assert_clean(self) -> None:
        stats = self.loop.stats()
        assert stats["num_running"] == stats["num_waiting"] == stats["num_in_flight"] == 0
        assert self.manager.num_seqs == 0 and self.manager.num_used_pages == 0
        assert self.manager.num_free_pages == self.executor.num_pages - 1

    def finish_of(self, name: str, choice: int = 0) -> Finish:
        last = self.told[name, choice].last
        assert last is not None and last.finish is not None
        return last.finish
