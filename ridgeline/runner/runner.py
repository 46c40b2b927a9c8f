"""LocalExecutor: runs plans on this process's device, one after another, beside the caller.

Charter:
  1. A request's state sits in a fixed row; a step gathers, nothing moves.
  2. Sampled tokens stay on the device and feed the next step; the host only hears of them.
  3. begin() returns at once. One worker thread does all of the device's work, in the order begun, so that the
     scheduler plans step n + 1 while step n runs.
  4. Only positions that sample are projected; prompt log-probabilities go in slices of bounded memory.
  5. A row that breaks fails alone: a step that raises is bisected by rows, and rows whose numbers are not
     finite are reported; nothing is rolled back here, since writing the same keys and values again changes
     nothing, and recurrent states land last.

Knows no queue, no page ownership and no text.

Legend: R rows of the plan, S rows that sample, T tokens, H hidden, V vocabulary.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.base.clock import Clock
from ridgeline.nn.build import Model
from ridgeline.runner.cache import PageCache
from ridgeline.runner.inputs import build_step, select
from ridgeline.runner.logprobs import PromptScores, row_logprobs
from ridgeline.runner.rows import Rows
from ridgeline.runner.sampler import Sampler
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.plan import SAMPLE_NONE, RowLogprobs, StepPlan, StepResult

Places = NDArray[np.int64]
NOT_FINITE = "the model's numbers for this request are not finite (NaN or Inf in its weights or activations)"


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """What is known of a step so far, by place in the plan. hidden_RH: each row's last position."""

    hidden_RH: Tensor
    tokens: dict[int, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[RowLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[tuple[int, RowLogprobs]]] = field(default_factory=dict)
    experts_read: int = 0

    def unbroken(self, places: Places) -> Places:
        """Those without an error so far."""
        return np.array([place for place in places if place not in self.errors], np.int64)

    def result(self, plan: StepPlan, started_s: float, finished_s: float) -> StepResult:
        failed = np.zeros(plan.num_rows, np.uint8)
        failed[list(self.errors)] = 1
        num_new = np.zeros(plan.num_rows, np.int32)
        num_new[list(self.tokens)] = 1
        tokens = np.array([self.tokens[place] for place in sorted(self.tokens)], np.int32)
        return StepResult(
            step=plan.step, num_new=num_new, tokens=tokens, failed=failed, errors=self.errors,
            logprobs=self.logprobs, prompt_logprobs=self.prompt_logprobs,
            returned_tickets=plan.copies.ticket, experts_read=self.experts_read, started_s=started_s,
            finished_s=finished_s)


class LocalExecutor:
    """An Executor over one Model. Binds the model to an arena of its own."""

    max_in_flight = 2

    def __init__(self, model: Model, capacity: Capacity, *, cache_dtype: torch.dtype, device: torch.device,
                 clock: Clock, threads: int | None = None) -> None:
        """capacity.layout: planned for the model's spec at cache_dtype's bytes. threads: of the worker's
        math."""
        self._model = model
        self._capacity = capacity
        self._clock = clock
        self._cache = PageCache(capacity.layout, capacity.num_pages, device)
        model.bind_cache(capacity.layout, self._cache.region, cache_dtype)
        self._rows = Rows(capacity.layout, capacity.num_rows, capacity.max_model_len, device)
        self._scores = PromptScores(model, self._rows, capacity.vocab_size)
        self._sampler = Sampler(capacity.num_rows, capacity.vocab_size, device)
        self._worker = ThreadPoolExecutor(1, "runner", _set_threads, (threads,))
        self._flying: deque[tuple[int, Future[StepResult]]] = deque()
        self._next_ticket = 0

    def capacity(self) -> Capacity:
        return self._capacity

    def begin(self, plan: StepPlan, now: float) -> int:
        """Hand a plan to the worker; returns its ticket."""
        assert len(self._flying) < self.max_in_flight, "too many steps in flight"
        assert plan.num_tokens <= self._capacity.max_step_tokens and not plan.draft.any()
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

    # ---- on the worker

    def _run(self, plan: StepPlan) -> StepResult:
        started_s = self._clock.now()
        with torch.inference_mode():
            outcome = _Outcome(hidden_RH=torch.empty(0))
            self._take_news(plan, outcome)
            everyone = outcome.unbroken(np.arange(plan.num_rows))
            isolate(everyone, lambda places: self._forward(plan, places, outcome), outcome.errors)
            sampling = outcome.unbroken(np.flatnonzero(plan.sample != SAMPLE_NONE))
            outcome.experts_read = self._model.take_experts_read()
            isolate(sampling, lambda places: self._sample(plan, places, outcome), outcome.errors)
        return outcome.result(plan, started_s, self._clock.now())

    def _take_news(self, plan: StepPlan, outcome: _Outcome) -> None:
        for start in plan.row_starts:
            self._rows.take(start)
            try:
                self._sampler.start(start)
            except Exception as error:  # parameters that slipped past the door
                places = np.flatnonzero(plan.row == start.row)
                outcome.errors.update(dict.fromkeys(places.tolist(), _text(error)))
        self._rows.update(plan.tables)
        self._cache.copy(plan.copies)

    def _forward(self, plan: StepPlan, places: Places, outcome: _Outcome) -> None:
        """Run some of the plan's rows through the model; keep each one's last hidden state."""
        part = select(plan, places)
        step = build_step(part, self._rows, self._capacity.layout)
        x_TH = self._model.forward(step)
        hidden_RH = x_TH[torch.from_numpy(part.count.cumsum() - 1)]
        if outcome.hidden_RH.shape[0] == 0:
            outcome.hidden_RH = hidden_RH.new_zeros(plan.num_rows, hidden_RH.shape[1])
        outcome.hidden_RH[torch.from_numpy(places)] = hidden_RH
        broken = places[torch.isfinite(hidden_RH).all(1).logical_not_().cpu().numpy()]
        outcome.errors.update(dict.fromkeys(broken.tolist(), NOT_FINITE))
        first = part.num_decodes  # a decode predicts no token of its prompt
        for place, count in zip(places[first:].tolist(), part.count[first:].tolist()):
            found = self._scores.of(plan, place, x_TH[first: first + count])
            if found and place not in outcome.errors:
                outcome.prompt_logprobs[place] = found
            first += count
        step.land()

    def _sample(self, plan: StepPlan, places: Places, outcome: _Outcome) -> None:
        """Project and sample some rows; their tokens stay on the device for the next step."""
        rows = plan.row[places].astype(np.int64)
        rows_S = torch.from_numpy(rows)
        positions_S = torch.from_numpy((plan.start + plan.count)[places].astype(np.int64))
        logits_SV = self._model.logits(outcome.hidden_RH[torch.from_numpy(places)], len(places))
        out = self._sampler.sample(logits_SV, rows_S, positions_S)
        self._rows.last_token[rows_S] = out.tokens_S
        for place, token, failed in zip(places.tolist(), out.tokens_S.tolist(), out.failed_S.tolist()):
            if failed:
                outcome.errors[place] = NOT_FINITE
            else:
                outcome.tokens[place] = token
        asked = [(i, k) for i, row in enumerate(rows.tolist())
                 if (k := self._rows.request(row).params.logprobs) is not None
                 and int(places[i]) in outcome.tokens]
        if asked:
            found = row_logprobs(logits_SV[[i for i, _ in asked]], out.tokens_S[[i for i, _ in asked]],
                                 [k for _, k in asked])
            outcome.logprobs.update({int(places[i]): [one] for (i, _), one in zip(asked, found)})


def isolate(places: Places, run: Callable[[Places], None], errors: dict[int, str]) -> None:
    """Run all places together; when that raises, halve until the rows that cannot run stand alone."""
    if not len(places):
        return
    try:
        run(places)
        return
    except Exception as error:  # whatever a row breaks on, the others must go on
        reason = _text(error)  # and not the error, which holds on to the memory of what broke
    if len(places) == 1:
        errors[int(places[0])] = reason
        return
    middle = len(places) // 2
    isolate(places[:middle], run, errors)
    isolate(places[middle:], run, errors)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
