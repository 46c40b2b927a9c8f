"""GpuExecutor: runs plans on a GPU, launched by the caller one step ahead of what the GPU does.

Charter:
  1. A request's state sits in a fixed row on the GPU; a step gathers, nothing moves.
  2. begin() only launches: inputs go up from pinned memory that nobody writes while they are on their way,
     sampled tokens stay on the GPU for the next step, results start their way back. finish() waits for one
     event.
  3. Steps of decodes alone are one CUDA graph, sampling included; steps with prompts go kernel by kernel.
     prepare() compiles and records all of it, so that no request waits for a kernel.
  4. A row that breaks fails alone. A step that lacks memory, or breaks otherwise, is halved until it goes; a
     row that lacks memory even alone is reported as undone. Rows whose numbers are not finite are found on
     the GPU and reported with the result.
  5. A step's time is the GPU's own, between two events.
  6. Nothing waits inside a step.

Knows no queue, no page ownership and no text. Legend: R rows of the plan, S rows that sample, T tokens, H
hidden.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.clock import Clock
from ridgeline.base.errors import EngineDeadError
from ridgeline.kernels.ahead import compile_all, missing
from ridgeline.kernels.prefill_attention import LIBRARY_TOKENS
from ridgeline.nn.build import Model
from ridgeline.runner.cache import PageCache
from ridgeline.runner.choose import Chooser, Scores
from ridgeline.runner.graphs import FIELDS, DecodeGraphs
from ridgeline.runner.inputs import build_step, select
from ridgeline.runner.isolate import Broken, Places, as_text, isolate, lacks_memory
from ridgeline.runner.logprobs import PromptScores
from ridgeline.runner.rows import Rows
from ridgeline.runner.runner import NOT_FINITE
from ridgeline.runner.stage import stage
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.plan import SAMPLE_NONE, Copies, RowLogprobs, StepPlan, StepResult


class _Slot:
    """What a step in flight has to itself, used again once it has been waited for: pinned memory for its
    inputs and results, and the events around it."""

    def __init__(self, max_rows: int) -> None:
        self.staged = torch.zeros(FIELDS * max_rows, dtype=torch.int32, pin_memory=True)
        self.out = torch.zeros(2 * max_rows, dtype=torch.int32, pin_memory=True)
        self.begun, self.ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))


@dataclass(slots=True, kw_only=True)
class _Flight:
    """A step on its way. out_2R: pinned, whole once the slot's `ended` is reached: tokens, and 1 for a row
    that is not finite. sampled: places that have a token there. prompts: (place, first position, scores)."""

    plan: StepPlan
    ticket: int
    slot: _Slot
    out_2R: Tensor
    sampled: Places
    experts_read: int = 0
    broken: Broken = field(default_factory=Broken)
    scores: list[Scores] = field(default_factory=list)
    prompts: list[tuple[int, int, Scores]] = field(default_factory=list)

    def _prompt_logprobs(self) -> dict[int, list[tuple[int, RowLogprobs]]]:
        """By place, in order of positions."""
        found: dict[int, list[tuple[int, RowLogprobs]]] = {}
        for place, low, scores in self.prompts:
            found.setdefault(place, []).extend((low + i, one) for i, (one,) in scores.read().items())
        return found

    def result(self, started_s: float, finished_s: float) -> StepResult:
        plan, out_2R = self.plan, self.out_2R.numpy()[:, : self.plan.num_rows]
        num_new, errors = np.zeros(plan.num_rows, np.int32), self.broken.errors
        if out_2R[1].any():
            errors |= dict.fromkeys(set(np.flatnonzero(out_2R[1]).tolist()) - errors.keys(), NOT_FINITE)
        failed = self.broken.codes(plan.num_rows)
        num_new[self.sampled] = 1
        num_new[failed != 0] = 0
        return StepResult(
            step=plan.step,
            num_new=num_new,
            tokens=out_2R[0][num_new != 0].copy(),
            failed=failed,
            errors=errors,
            short=self.broken.short,
            logprobs={
                place: one
                for scores in self.scores
                for place, one in scores.read().items()
                if not failed[place]
            },
            prompt_logprobs={p: found for p, found in self._prompt_logprobs().items() if not failed[p]},
            returned_tickets=plan.copies.ticket,
            experts_read=self.experts_read,
            started_s=started_s,
            finished_s=finished_s,
        )


class GpuExecutor:
    """An Executor over one Model whose kernels run on a GPU. Binds the model to an arena of its own."""

    max_in_flight = 2

    def __init__(
        self,
        model: Model,
        capacity: Capacity,
        *,
        cache_dtype: torch.dtype,
        device: torch.device,
        clock: Clock,
        graphs: bool = True,
    ) -> None:
        """capacity.layout: planned for the model's spec at cache_dtype's bytes. graphs=False: kernel by
        kernel, the slow twin."""
        self._model = model
        self._capacity = capacity
        self._device = device
        self._clock = clock
        self._cache = PageCache(capacity.layout, capacity.num_pages, device, capacity.num_host_pages)
        model.bind_cache(capacity.layout, self._cache.region, cache_dtype)
        self._rows = Rows(capacity.layout, capacity.num_rows, capacity.max_model_len, device)
        self._scores = PromptScores(model, self._rows, capacity.vocab_size, most=capacity.num_rows)
        assert model.gpu is not None
        num_rows = capacity.num_rows
        self._chooser = Chooser(model.gpu, self._rows, num_rows=num_rows, vocab_size=capacity.vocab_size)
        self._graphs: DecodeGraphs | None = None
        if graphs and model.capturable:
            self._graphs = DecodeGraphs(model, self._rows, self._chooser, max_rows=num_rows)
        self._slots = [_Slot(capacity.num_rows) for _ in range(self.max_in_flight)]
        self._flying: deque[_Flight] = deque()
        self._next_ticket = 0

    def capacity(self) -> Capacity:
        return self._capacity

    def prepare(self) -> None:
        """Before the first request: compile what any step launches, by several processes at once where it is
        not compiled yet, record the graphs, and run the longest prompts, so that libraries are loaded and
        the allocator has seen the largest step."""
        if self._graphs is None:
            return
        with missing() as jobs:
            self._graphs.record_all()
            self._prompts(2)
        if jobs:
            compile_all(jobs)
            self._graphs.record_all()
            self._prompts(2)
        most = self._capacity.max_step_tokens
        with suppress(torch.OutOfMemoryError):  # such a step will be halved
            for num_tokens in {most, min(most, LIBRARY_TOKENS)}:
                self._prompts(num_tokens)
        torch.cuda.synchronize(self._device)

    def begin(self, plan: StepPlan, now: float) -> int:
        """Launch a step; returns its ticket. MemoryError when there is none even for its news."""
        try:
            return self._launch(plan)
        except Exception as error:
            if lacks_memory(error):
                raise MemoryError(as_text(error)) from None
            raise

    def _launch(self, plan: StepPlan) -> int:
        assert len(self._flying) < self.max_in_flight, "too many steps in flight"
        assert plan.num_tokens <= self._capacity.max_step_tokens and not plan.draft.any()
        slot = self._slots[self._next_ticket % len(self._slots)]
        flight = _Flight(
            plan=plan,
            ticket=self._next_ticket,
            slot=slot,
            out_2R=slot.out,
            sampled=np.flatnonzero(plan.sample != SAMPLE_NONE),
        )
        slot.begun.record()
        self._take_news(plan)
        out_2R = None
        if self._graphs is not None and plan.num_rows == plan.num_decodes:
            out_2R = self._decode(self._graphs, flight)
        if out_2R is None:
            with torch.inference_mode():
                out_2R = self._mixed(flight)
                flight.experts_read = self._model.take_experts_read()
        flight.out_2R = slot.out[: out_2R.numel()].view(out_2R.shape).copy_(out_2R, non_blocking=True)
        slot.ended.record()
        self._next_ticket += 1
        self._flying.append(flight)
        return flight.ticket

    def ready_at(self, ticket: int) -> float | None:
        """Only waiting tells."""
        return None

    def finish(self, ticket: int, now: float) -> StepResult:
        """Wait for the oldest step. EngineDeadError when the GPU is lost; the result has the rows that
        broke."""
        flight = self._flying.popleft()
        assert ticket == flight.ticket, "steps finish in the order begun"
        try:
            flight.slot.ended.synchronize()
        except RuntimeError as error:  # an error of a kernel stays with the process
            raise EngineDeadError(f"the GPU failed: {error}") from error
        finished_s = self._clock.now()
        elapsed_ms = flight.slot.begun.elapsed_time(flight.slot.ended)
        return flight.result(finished_s - elapsed_ms / 1e3, finished_s)

    def close(self) -> None:
        """Wait for the steps in flight."""
        torch.cuda.synchronize(self._device)

    # ---- a step

    def _prompts(self, num_tokens: int) -> None:
        """Prompts of so many tokens together through the model, in a page that no request has yet."""
        left, counts = num_tokens, list[int]()
        while left and len(counts) < self._capacity.num_rows:
            counts.append(min(left, self._capacity.max_model_len))
            left -= counts[-1]
        rows, zeros = np.arange(len(counts), dtype=np.int32), np.zeros(len(counts), np.int32)
        plan = StepPlan(
            step=0, request=rows.astype(np.int64), row=rows, start=zeros, count=np.array(counts, np.int32),
            sample=zeros.astype(np.uint8), draft=zeros, tokens=np.zeros(sum(counts), np.int32), num_decodes=0,
            row_starts=(), tables=(), copies=Copies.none(),
        )  # fmt: skip
        with torch.inference_mode():
            self._model.forward(build_step(plan, self._rows, self._capacity.layout))

    def _take_news(self, plan: StepPlan) -> None:
        for start in plan.row_starts:
            self._rows.take(start)
            self._chooser.start(start)
        self._rows.update(plan.tables)
        self._cache.copy(plan.copies)

    def _decode(self, graphs: DecodeGraphs, flight: _Flight) -> Tensor | None:
        """[2, R and more]; None, and nothing sampled, when there is no memory for it."""
        plan = flight.plan
        reach = np.maximum(self._rows.num_prompt[plan.row], plan.start + 1)
        try:
            done = graphs.run(flight.slot.staged, plan.row, plan.start, plan.tokens, reach)
        except torch.OutOfMemoryError:
            flight.broken.short = True
            return None
        num = plan.num_rows
        self._score(flight, done.logits_SV[:num], done.lens_S[:num], done.out_2S[0, :num], flight.sampled)
        return done.out_2S

    def _mixed(self, flight: _Flight) -> Tensor:
        """[2, R]"""
        plan, outs = flight.plan, []
        out_2R = torch.zeros(2, plan.num_rows, dtype=torch.int32, device=self._device)
        isolate(
            np.arange(plan.num_rows), lambda places: outs.append(self._part(flight, places)), flight.broken
        )
        for places, part_2P in outs:
            out_2R[:, stage(places, self._device)] = part_2P
        return out_2R

    def _part(self, flight: _Flight, places: Places) -> tuple[Places, Tensor]:
        """Some of the plan's rows through the model: (places, [2, places])."""
        part = select(flight.plan, places)
        step = build_step(part, self._rows, self._capacity.layout)
        if self._model.apart:  # decodes as chunks of one token, by the kernels of prompts
            step = replace(step, num_decodes=0)
        x_TH = self._model.forward(step)
        hidden_PH = x_TH[stage(part.count.cumsum() - 1, self._device)]
        out_2P = torch.zeros(2, len(places), dtype=torch.int32, device=self._device)
        out_2P[1] = hidden_PH.isfinite().all(1).logical_not_()
        first = part.num_decodes  # a decode predicts no token of its prompt
        for place, count in zip(places[first:].tolist(), part.count[first:].tolist()):
            owed = self._scores.owed(flight.plan, place, x_TH[first : first + count])
            flight.prompts += [
                (place, low, self._chooser.taken(logits_SV, tokens_S, tops))
                for low, logits_SV, tokens_S, tops in owed
            ]
            first += count
        sampling = np.flatnonzero(part.sample != SAMPLE_NONE)
        if len(sampling):
            at = stage(sampling, self._device)
            out_2P[:, at] = self._choose(self._model.logits(hidden_PH[at], len(at)), flight, places[sampling])
        step.land()
        return places, out_2P

    def _choose(self, logits_SV: Tensor, flight: _Flight, places: Places) -> Tensor:
        """Sample the rows at these places of the plan: [2, S]. Their tokens stay for the next step."""
        plan = flight.plan
        lens = (plan.start + plan.count)[places]
        rows_S, lens_S = stage(np.stack([plan.row[places], lens]), self._device)
        out_2S = torch.empty(2, len(places), dtype=torch.int32, device=self._device)
        self._chooser.choose(logits_SV, rows_S, lens_S, out_2S)
        self._score(flight, logits_SV, lens_S, out_2S[0], places)
        return out_2S

    def _score(
        self, flight: _Flight, logits_SV: Tensor, lens_S: Tensor, tokens_S: Tensor, places: Places
    ) -> None:
        """Log-probabilities of the rows that asked for them."""
        scores = self._chooser.scores(logits_SV, lens_S, tokens_S, flight.plan.row[places], places)
        if scores is not None:
            flight.scores.append(scores)
