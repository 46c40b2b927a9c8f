"""LocalExecutor: runs plans on this process's device, one after another, beside the caller.

Charter:
  1. A request's state sits in a fixed row; a step gathers, nothing moves.
  2. Sampled tokens stay on the device and feed the next step; the host only hears of them.
  3. begin() returns at once. One worker thread does all of the device's work, in the order begun, so that the
     scheduler plans step n + 1 while step n runs.
  4. Only positions that sample are projected; prompt log-probabilities go in slices of bounded memory.
  5. A row that breaks fails alone: a step that raises is bisected by rows, and rows whose numbers are not
     finite are reported; nothing is rolled back here, since writing the same keys and values again changes
     nothing, and recurrent states land last. A row that lacks memory even alone is reported as undone.
  6. What a grammar leaves no choice in is known with the token before it (grammar.py). A step that was
     planned before computes such a row and does not sample it.
  7. Drafts fill the slots that a plan reserves for them and stand as far as the sampler says the same
     (speculate/). What the first wrong one and those behind it wrote is overwritten before anybody sees it;
     recurrent states land once it is known how far they go.

Knows no queue, no page ownership and no text.

Legend: R rows of the plan, S positions that are projected, T tokens, H hidden, V vocabulary.
"""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.adapters.load import Adapter
from ridgeline.base.clock import Clock
from ridgeline.blocks.step import Step
from ridgeline.nn.build import Model
from ridgeline.runner.cache import PageCache
from ridgeline.runner.grammar import Grammars, Masks
from ridgeline.runner.inputs import build_step, select
from ridgeline.runner.isolate import Broken, Places, as_text, isolate, lacks_memory
from ridgeline.runner.logprobs import PromptScores, row_logprobs
from ridgeline.runner.pool import Pooler
from ridgeline.runner.rows import Rows
from ridgeline.runner.sampler import Sampler
from ridgeline.runner.speculate.speculator import Drafter, Proposal
from ridgeline.runner.speculate.verify import Span, verify
from ridgeline.runner.wanted import Wanted
from ridgeline.runner.within import sample_within
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.plan import SAMPLE_NONE, Drafting, RowLogprobs, StepPlan, StepResult

_NO_DRAFTS = Proposal(tokens=[])
NOT_FINITE = "the model's numbers for this request are not finite (NaN or Inf in its weights or activations)"


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """What is known of a step so far, by place in the plan.

    hidden_SH: each row's last position, after one more for each of its drafts. ends [R]: where a row's end.
    tested: steps with drafts, and the plan's rows that each ran. masks: of rows that follow a grammar, beside
    drafts.
    """

    hidden_SH: Tensor
    ends: Places
    proposals: dict[int, Proposal]
    tokens: dict[int, list[int]] = field(default_factory=dict)
    forced: dict[int, list[int]] = field(default_factory=dict)
    broken: Broken = field(default_factory=Broken)
    logprobs: dict[int, list[RowLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[tuple[int, RowLogprobs]]] = field(default_factory=dict)
    pooled: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    experts_read: int = 0
    tested: list[tuple[Step, Places]] = field(default_factory=list)
    masks: Masks | None = None

    def land(self, plan: StepPlan) -> None:
        """States go as far as drafts stand: a row has a new token for each that was fed and does."""
        for step, places in self.tested:
            stood = plan.count[places].astype(np.int64)
            for i in np.flatnonzero(plan.draft[places]).tolist():
                stood[i] = len(self.tokens[int(places[i])]) if places[i] in self.tokens else 1
            step.land(stood)

    def unbroken(self, places: Places) -> Places:
        """Those without an error so far."""
        return np.array([place for place in places if place not in self.broken.errors], np.int64)

    def result(self, plan: StepPlan, drafting: Drafting | None, started_s: float,
               finished_s: float) -> StepResult:
        failed = self.broken.codes(plan.num_rows)
        num_new = np.zeros(plan.num_rows, np.int32)
        num_new[list(self.tokens)] = [len(new) for new in self.tokens.values()]
        tokens = np.array([token for place in sorted(self.tokens) for token in self.tokens[place]], np.int32)
        return StepResult(
            step=plan.step, num_new=num_new, tokens=tokens, failed=failed, errors=self.broken.errors,
            forced=self.forced, logprobs=self.logprobs, prompt_logprobs=self.prompt_logprobs,
            pooled=self.pooled, returned_tickets=plan.copies.ticket, short=self.broken.short,
            experts_read=self.experts_read,
            started_s=started_s, finished_s=finished_s, drafting=drafting)


class LocalExecutor:
    """An Executor over one Model. Binds the model to an arena of its own."""

    max_in_flight = 2

    def __init__(self, model: Model, capacity: Capacity, *, cache_dtype: torch.dtype, device: torch.device,
                 clock: Clock, threads: int | None = None, drafter: Drafter | None = None,
                 grammars: Grammars | None = None) -> None:
        """capacity.layout: planned for the model's spec at cache_dtype's bytes. threads: of the worker's
        math. drafter: fills draft slots; without one a plan must have none. grammars: without them no request
        may have one."""
        self._model = model
        self._capacity = capacity
        self._clock = clock
        self._cache = PageCache(capacity.layout, capacity.num_pages, device, capacity.num_host_pages)
        model.bind_cache(capacity.layout, self._cache.region, cache_dtype)
        self._rows = Rows(capacity.layout, capacity.num_rows, capacity.max_model_len, device)
        self._scores = PromptScores(model, self._rows, capacity.vocab_size)
        self._pooler = Pooler(model)
        self._sampler = Sampler(capacity.num_rows, capacity.vocab_size, device)
        self._drafter = drafter
        self.grammars = grammars
        self._worker = ThreadPoolExecutor(1, "runner", _set_threads, (threads,))
        self._flying: deque[tuple[int, Future[StepResult]]] = deque()
        self._next_ticket = 0

    def capacity(self) -> Capacity:
        return self._capacity

    def begin(self, plan: StepPlan, now: float) -> int:
        """Hand a plan to the worker; returns its ticket."""
        assert len(self._flying) < self.max_in_flight, "too many steps in flight"
        assert plan.num_tokens <= self._capacity.max_step_tokens
        assert self._drafter is not None or not plan.draft.any(), "nobody fills these draft slots"
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._flying.append((ticket, self._worker.submit(self._run, plan)))
        return ticket

    def ready_at(self, ticket: int) -> float | None:
        """Only waiting tells."""
        return None

    def finish(self, ticket: int, now: float) -> StepResult:
        """Wait for the oldest step. Raises what broke the executor itself; the result has the rows that
        broke."""
        expected, future = self._flying.popleft()
        assert ticket == expected, "steps finish in the order begun"
        return future.result()

    def close(self) -> None:
        """Wait for the steps in flight and end the worker."""
        self._worker.shutdown()
        if self.grammars is not None:
            self.grammars.close()

    def put_adapter(self, slot: int, adapter: Adapter | None) -> None:
        """Fill a slot of the model, or empty it, once the steps in flight are over and before any later
        one."""
        assert self._model.adapters is not None, "a model without room for adapters"
        self._worker.submit(self._model.adapters.put, slot, adapter)

    # ---- on the worker

    def _run(self, plan: StepPlan) -> StepResult:
        try:
            return self._step(plan)
        except Exception as error:
            if lacks_memory(error):
                raise MemoryError(as_text(error)) from None
            raise

    def _step(self, plan: StepPlan) -> StepResult:
        started_s = self._clock.now()
        with torch.inference_mode():
            broken = Broken(errors=self._take_news(plan))
            if self.grammars is not None:
                plan = self.grammars.without_known(plan)
            proposals: dict[int, Proposal] = {}
            if self._drafter is not None:
                plan, proposals = self._drafter.fill(plan)
            outcome = _Outcome(hidden_SH=torch.empty(0), ends=(plan.draft + 1).cumsum(),
                               proposals=proposals, broken=broken)
            if self.grammars is not None and proposals:
                outcome.masks = self.grammars.masks(plan)
            everyone = outcome.unbroken(np.arange(plan.num_rows))
            isolate(everyone, lambda places: self._forward(plan, places, outcome), broken)
            sampling = outcome.unbroken(np.flatnonzero(plan.sample != SAMPLE_NONE))
            outcome.experts_read = self._model.take_experts_read()
            isolate(sampling, lambda places: self._sample(plan, places, outcome), broken)
            if self.grammars is not None:
                self._follow(self.grammars, plan, outcome)
            outcome.land(plan)
            drafting = None if self._drafter is None else \
                self._drafter.settle(plan, outcome.tokens, outcome.forced, proposals)
        return outcome.result(plan, drafting, started_s, self._clock.now())

    def _take_news(self, plan: StepPlan) -> dict[int, str]:
        """Errors by place."""
        errors: dict[int, str] = {}
        for start in plan.row_starts:
            self._rows.take(start)
            self._pooler.start(start)
            try:
                self._sampler.start(start)
            except Exception as error:  # parameters that slipped past the door
                places = np.flatnonzero(plan.row == start.row)
                errors.update(dict.fromkeys(places.tolist(), as_text(error)))
            if self._drafter is not None:
                self._drafter.start(start)
            if self.grammars is not None:
                self.grammars.start(start)
        self._rows.update(plan.tables)
        self._cache.copy(plan.copies)
        return errors

    def _forward(self, plan: StepPlan, places: Places, outcome: _Outcome) -> None:
        """Run some of the plan's rows through the model; keep the hidden states that are projected."""
        part = select(plan, places)
        tails = part.draft.astype(np.int64) + 1
        wanted = Wanted.of(part, tails, self._pooler.rows(part) | self._scores.rows(part))
        step = build_step(part, self._rows, self._capacity.layout, apart=self._model.apart,
                          wanted=wanted.tokens)
        x_WH = self._model.forward(step)
        hidden_SH = x_WH[torch.from_numpy(wanted.last(tails))]
        if outcome.hidden_SH.shape[0] == 0:
            outcome.hidden_SH = hidden_SH.new_zeros(int(outcome.ends[-1]), hidden_SH.shape[1])
        outcome.hidden_SH[torch.from_numpy(_tails(outcome.ends[places], part.draft))] = hidden_SH
        own_RH = outcome.hidden_SH[torch.from_numpy(outcome.ends[places] - 1 - part.draft)]
        broken = places[torch.isfinite(own_RH).all(1).logical_not_().cpu().numpy()]
        outcome.broken.errors.update(dict.fromkeys(broken.tolist(), NOT_FINITE))
        for place, vector in self._pooler.of(part, x_WH, wanted):
            outcome.pooled[int(places[place])] = vector.cpu().numpy()
        for own, place in enumerate(places[part.num_decodes:].tolist(), part.num_decodes):
            found = self._scores.of(plan, place, x_WH[wanted.span(own)])  # of no decode
            if found and place not in outcome.broken.errors:
                outcome.prompt_logprobs[place] = found
        if step.runs is None or not part.draft.any():
            step.land()
        else:
            outcome.tested.append((step, places[:len(step.runs)]))

    def _sample(self, plan: StepPlan, places: Places, outcome: _Outcome) -> None:
        """Project and sample some rows; their last tokens stay on the device for the next step."""
        rows, draft = plan.row[places].astype(np.int64), plan.draft[places]
        rows_S, at = torch.from_numpy(rows), _tails(outcome.ends[places], draft)
        first = np.arange(len(places)) + draft.cumsum() - draft  # of a row's positions in `at`
        positions = (plan.start + plan.count)[places].astype(np.int64)
        logits_SV = self._model.logits(outcome.hidden_SH[torch.from_numpy(at)], len(at))
        scored = self.grammars is not None and any(
            self._rows.request(row).params.logprobs is not None for row in rows.tolist())
        if outcome.proposals:
            allowed_SV = logits_SV if outcome.masks is None else outcome.masks.apply(
                logits_SV, places.tolist(), first.tolist(), draft.tolist(), keep=scored)
            taken, failed = verify(self._sampler, allowed_SV, [
                Span(start=self._rows.request(row), at=where, position=position,
                     proposal=outcome.proposals.get(place, _NO_DRAFTS))
                for place, row, where, position in zip(
                    places.tolist(), rows.tolist(), first.tolist(), (positions - draft).tolist())])
            last_S = torch.tensor([tokens[-1] for tokens in taken], device=self._rows.last_token.device)
            self._rows.last_token[rows_S] = last_S
        else:
            asked_S = rows_S, torch.from_numpy(positions)
            out = self._sampler.sample(logits_SV, *asked_S) if self.grammars is None else \
                sample_within(self._sampler, self.grammars, logits_SV, *asked_S, keep=scored)
            self._rows.last_token[rows_S] = out.tokens_S
            taken, failed = [[token] for token in out.tokens_S.tolist()], out.failed_S.tolist()
        asked: list[tuple[int, int, int, int]] = []  # place, flat position, its token, how many besides
        for place, row, tokens, broken, where in zip(places.tolist(), rows.tolist(), taken, failed,
                                                     first.tolist()):
            if broken:
                outcome.broken.errors[place] = NOT_FINITE
                continue
            outcome.tokens[place] = tokens
            if (most := self._rows.request(row).params.logprobs) is not None:
                asked += [(place, where + i, token, most) for i, token in enumerate(tokens)]
        if asked:
            _, flat, ids, tops = (list(column) for column in zip(*asked))
            found = row_logprobs(logits_SV[flat], torch.tensor(ids, device=logits_SV.device), tops)
            for (place, *_), one in zip(asked, found):
                outcome.logprobs.setdefault(place, []).append(one)

    def _follow(self, grammars: Grammars, plan: StepPlan, outcome: _Outcome) -> None:
        """The grammars hear of the tokens and tell what they force; a row whose grammar gives up fails."""
        for place, tokens in list(outcome.tokens.items()):
            row, end = int(plan.row[place]), int(plan.start[place] + plan.count[place] - plan.draft[place])
            if (error := grammars.accept(row, tokens)) is not None:
                del outcome.tokens[place]
                outcome.logprobs.pop(place, None)
                outcome.broken.errors[place] = error
            elif forced := grammars.force(row, end + len(tokens)):
                outcome.forced[place] = forced
                self._sampler.extend(row, end + len(tokens), forced)


def _tails(ends: Places, draft: NDArray[np.int32]) -> Places:
    """The last place before each end, after as many more as there are drafts; flat."""
    if not draft.any():
        return ends - 1
    sizes = draft + 1
    return np.arange(int(sizes.sum())) + np.repeat(ends - sizes.cumsum(), sizes)


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
