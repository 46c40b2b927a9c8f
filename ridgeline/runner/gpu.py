"""GpuExecutor: runs plans on a GPU, launched by the caller one step ahead of what the GPU does.

Charter:
  1. A request's state sits in a fixed row on the GPU; a step gathers, nothing moves.
  2. begin() only launches: inputs go up from pinned memory that nobody writes while they are on their way,
     sampled tokens stay on the GPU for the next step, results start their way back. finish() waits for one
     event.
  3. Steps of decodes alone are one CUDA graph, sampling included, and so are short steps with prompts; the
     others go kernel by kernel. prepare() compiles all of it, so that no request waits for a kernel.
  4. A row that breaks fails alone. A step that lacks memory, or breaks otherwise, is halved until it goes; a
     row that lacks memory even alone is reported as undone. Rows whose numbers are not finite are found on
     the GPU and reported with the result.
  5. A step's time is the GPU's own, between two events.
  6. A step of decodes under grammars is launched up to its logits. Once the step before it was waited for,
     its masks are made by other threads, and it is sampled by whoever comes next: the launch of the step
     behind it, or who waits for it. One with prompts waits inside for the step before it and for its masks.
  7. Drafts go as chunks, whose positions are all sampled; the host sees how far they stand (flight.py).

Knows no queue, no page ownership and no text. Legend: R rows of the plan, S rows that sample, T tokens, H
hidden, W tokens that are wanted of the last layer, N positions that can be sampled: R, and one more for each
draft; P some of them.
"""

from collections import deque
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ridgeline.adapters.load import Adapter
from ridgeline.base.clock import Clock
from ridgeline.base.errors import EngineDeadError
from ridgeline.kernels.prefill_attention import LIBRARY_TOKENS
from ridgeline.kernels.sampling import Allowed
from ridgeline.nn.build import Model
from ridgeline.runner.ahead import compiled_meanwhile
from ridgeline.runner.cache import PageCache
from ridgeline.runner.choose import Chooser
from ridgeline.runner.flight import Flight, Slot
from ridgeline.runner.follow import Follower
from ridgeline.runner.grammar import Grammars, Masks
from ridgeline.runner.graphs import FIELDS, DecodeGraphs, Recorder
from ridgeline.runner.inputs import build_step, drafts_as_chunks
from ridgeline.runner.isolate import Places, as_text, isolate, lacks_memory
from ridgeline.runner.logprobs import PromptScores
from ridgeline.runner.pool import Pooler
from ridgeline.runner.prefixes import Prefixes, SharedPrefixes
from ridgeline.runner.rehearse import products, prompts
from ridgeline.runner.rows import Rows
from ridgeline.runner.short_graphs import ShortGraphs
from ridgeline.runner.speculate.speculator import Drafter
from ridgeline.runner.stage import retrieved, stage
from ridgeline.runner.wanted import Wanted
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.plan import SAMPLE_NONE, StepPlan, StepResult


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
        grammars: Grammars | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """capacity.layout: planned for the model's spec at cache_dtype's bytes. graphs=False: kernel by
        kernel, the slow twin. grammars: without them no request may have one. drafter: fills draft slots, of
        rows that need not be sampled in order; without one a plan must have none."""
        self._model = model
        self._capacity = capacity
        self._device = device
        self._clock = clock
        self._cache = PageCache(capacity.layout, capacity.num_pages, device, capacity.num_host_pages)
        model.bind_cache(capacity.layout, self._cache.region, cache_dtype)
        self._rows = Rows(capacity.layout, capacity.num_rows, capacity.max_model_len, device)
        self._pooler = Pooler(model)
        self._scores = PromptScores(model, self._rows, capacity.vocab_size, most=capacity.num_rows)
        assert model.gpu is not None
        num_rows = capacity.num_rows
        self._chooser = Chooser(model.gpu, self._rows, num_rows=num_rows, vocab_size=capacity.vocab_size)
        self._prefixes = Prefixes(capacity.layout, num_rows, capacity.max_model_len)
        self._graphs: DecodeGraphs | None = None
        self._short: ShortGraphs | None = None
        num_staged = FIELDS * num_rows
        if graphs and model.capturable:
            self._recorder = Recorder(device)
            parts = model, self._rows, self._chooser, self._recorder
            self._graphs = DecodeGraphs(*parts, max_rows=num_rows, prefixes=self._shared_prefixes())
            self._short = ShortGraphs(
                *parts, capacity.layout, max_rows=num_rows, max_tokens=capacity.max_step_tokens
            )
            num_staged = max(num_staged, self._short.num_staged)
        most = max(num_rows, capacity.max_step_tokens)
        self._slots = [Slot(num_staged, 2 * most, device) for _ in range(self.max_in_flight)]
        self._flying: deque[Flight] = deque()
        self.grammars = grammars
        self._follower = Follower(grammars=grammars, drafter=drafter)
        self._next_ticket = 0

    def _shared_prefixes(self) -> SharedPrefixes | None:
        """None for a model whose rows cannot read any together, or one row."""
        heads = None if self._prefixes.group is None else self._model.group_heads(self._prefixes.group)
        if heads is None or not self._prefixes.usable or self._capacity.num_rows < 2:
            return None
        return SharedPrefixes(
            self._prefixes, max_rows=self._capacity.num_rows, group_heads=heads, device=self._device
        )

    def capacity(self) -> Capacity:
        return self._capacity

    def prepare(self) -> None:
        """Before the first request: compile what any step launches, by several processes at once where it is
        not compiled yet, record the graphs, and run the longest prompts and products of all sizes, so that
        libraries are loaded and the allocator has seen the largest step."""
        if self._graphs is None or self._short is None:
            return
        with compiled_meanwhile(torch.get_num_threads()) as jobs:
            self._record(self._graphs, self._short)
        if jobs:
            self._record(self._graphs, self._short)
        most = self._capacity.max_step_tokens
        with suppress(torch.OutOfMemoryError):  # such a step will be halved
            for num_tokens in {most, min(most, LIBRARY_TOKENS)}:
                prompts(self._model, self._rows, self._capacity, num_tokens)
            products(self._model, self._rows, self._capacity)
        torch.cuda.synchronize(self._device)

    def _record(self, graphs: DecodeGraphs, short: ShortGraphs) -> None:
        self._recorder.renew()
        graphs.record_all()
        short.record_prompts()
        for num_tokens in (2, min(self._capacity.max_step_tokens, LIBRARY_TOKENS - 1)):  # the kernel's tiles
            prompts(self._model, self._rows, self._capacity, num_tokens)
        self._choose_idle()

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
        assert plan.num_tokens <= self._capacity.max_step_tokens
        for earlier in self._flying:
            self._sample(earlier)
        slot = self._slots[self._next_ticket % len(self._slots)]
        flight = Flight(
            plan=plan, ticket=self._next_ticket, slot=slot, out_2N=slot.out, binds=self._follower.binds(plan)
        )
        slot.mark(slot.begun)
        self._take_news(plan)
        if plan.draft.any():
            assert not self._flying, "drafts go on from texts that are known"
            self._follower.fill(flight)
        if flight.proposals or self._pooler.concerns(plan) or not self._by_graph(flight):
            with torch.inference_mode():
                flight.end(self._mixed(flight))
        if not self._flying and flight.logits_RV is not None:
            self._follower.mask(flight)
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
        self._sample(flight)
        try:
            flight.slot.ended.synchronize()
        except RuntimeError as error:  # an error of a kernel stays with the process
            raise EngineDeadError(f"the GPU failed: {error}") from error
        finished_s = self._clock.now()
        elapsed_ms = flight.slot.begun.elapsed_time(flight.slot.ended)
        self._read(flight)
        for later in self._flying:
            if later.logits_RV is not None:
                self._follower.mask(later)
        return flight.result(finished_s - elapsed_ms / 1e3, finished_s)

    def put_adapter(self, slot: int, adapter: Adapter | None) -> None:
        """Fill a slot of the model, or empty it, behind the steps in flight and before any later one."""
        assert self._model.adapters is not None, "a model without room for adapters"
        self._model.adapters.put(slot, adapter)

    def close(self) -> None:
        """Wait for the steps in flight."""
        torch.cuda.synchronize(self._device)
        if self.grammars is not None:
            self.grammars.close()

    def _read(self, flight: Flight) -> None:
        """The host's texts take a step that has ended, once."""
        if not flight.settled:
            flight.settled = True
            for place, forced in self._follower.read(flight).items():
                self._chooser.extend(int(flight.plan.row[place]), forced)

    def _bind(self, flight: Flight) -> None:
        """The step's masks, once the step before it was waited for and read. Its forward pass is launched."""
        if flight.masks is None and flight.binds:
            for earlier in self._flying:
                earlier.slot.ended.synchronize()
                self._read(earlier)
            self._follower.mask(flight)

    def _sample(self, flight: Flight) -> None:
        """Sample a step that is launched up to its logits, once its masks are there."""
        logits_RV, flight.logits_RV = flight.logits_RV, None
        if logits_RV is None:
            return
        out_2R = torch.zeros(2, len(logits_RV), dtype=torch.int32, device=self._device)

        def choose(places: Places) -> None:  # one behind another
            part, none = slice(places[0], places[-1] + 1), np.zeros_like(places)
            out_2R[:, part] = self._choose(logits_RV[part], flight, places, none)

        with torch.inference_mode():
            isolate(np.arange(len(logits_RV)), choose, flight.broken)
            flight.end(out_2R)

    # ---- a step

    def _choose_idle(self) -> None:
        """The kernels of masks, for a row that is idle."""
        if self.grammars is not None:
            logits_SV = torch.zeros(1, self._capacity.vocab_size, device=self._device)
            zeros = torch.zeros(4, 1, dtype=torch.int32, device=self._device)
            bits = torch.zeros(1, -(-self._capacity.vocab_size // 32), dtype=torch.int32, device=self._device)
            allowed = Allowed(bits=bits, which_S=zeros[0] - 1)
            self._chooser.choose(logits_SV, zeros[0], zeros[1], zeros[2:], allowed)

    def _take_news(self, plan: StepPlan) -> None:
        for start in plan.row_starts:
            self._rows.take(start)
            self._chooser.start(start)
            self._pooler.start(start)
        self._rows.update(plan.tables)
        self._prefixes.update(plan.tables, fresh=bool(plan.row_starts))
        self._cache.copy(plan.copies)

    def _by_graph(self, flight: Flight) -> bool:
        """False, and nothing sampled, when there is no graph for it or no memory."""
        if self._graphs is None or self._short is None:
            return False
        if flight.plan.num_rows == flight.plan.num_decodes:
            return self._decode(self._graphs, flight)
        if flight.binds or self._scores.concerns(flight.plan):
            return False
        return self._with_prompts(self._short, flight)

    def _with_prompts(self, graphs: ShortGraphs, flight: Flight) -> bool:
        plan, done = flight.plan, None
        try:
            size = graphs.size_of(plan)
            if size is not None:
                done = graphs.run(flight.slot.staged, plan, size)
        except torch.OutOfMemoryError:
            flight.broken.short = True
        if size is None or done is None:
            return False
        if done.experts is not None:
            flight.experts.append(retrieved(done.experts))
        at = graphs.places(plan, size)
        self._score(
            flight, done.logits_SV, done.lens_S, done.out_2S[0], flight.sampled, at=at[flight.sampled]
        )
        flight.end(done.out_2S[:, stage(at, self._device)])
        return True

    def _decode(self, graphs: DecodeGraphs, flight: Flight) -> bool:
        plan = flight.plan
        reach = np.maximum(self._rows.num_prompt[plan.row], plan.start + 1)
        groups = self._prefixes.of(plan.row, plan.start) if graphs.shares else ()
        try:
            done = graphs.run(
                flight.slot.staged, plan.row, plan.start, plan.tokens, reach, chooses=not flight.binds,
                groups=groups,
            )  # fmt: skip
        except torch.OutOfMemoryError:
            flight.broken.short = True
            return False
        num, flight.shared = plan.num_rows, groups
        if done.experts is not None:
            flight.experts.append(retrieved(done.experts))
        if flight.binds:
            flight.logits_RV = done.logits_SV[:num]
            return True
        if self._chooser.scores_any(plan.row):
            self._score(flight, done.logits_SV[:num], done.lens_S[:num], done.out_2S[0, :num], flight.sampled)
        flight.end(done.out_2S)
        return True

    def _mixed(self, flight: Flight) -> Tensor:
        """[2, N]"""
        plan, outs = flight.plan, []
        out_2N = torch.zeros(2, plan.num_rows + plan.num_drafts, dtype=torch.int32, device=self._device)
        isolate(
            np.arange(plan.num_rows), lambda places: outs.append(self._part(flight, places)), flight.broken
        )
        for at, part_2P in outs:
            out_2N[:, stage(at, self._device)] = part_2P
        flight.experts_read = self._model.take_experts_read()
        return out_2N

    def _part(self, flight: Flight, places: Places) -> tuple[Places, Tensor]:
        """Some of the plan's rows through the model: (which of N, [2, as many])."""
        part, places = drafts_as_chunks(flight.plan, places)
        sizes = flight.plan.draft[places].astype(np.int64) + 1
        wanted = Wanted.of(part, sizes, self._pooler.rows(part) | self._scores.rows(part))
        step = build_step(part, self._rows, self._capacity.layout, wanted=wanted.tokens)
        if self._model.apart:  # decodes as chunks of one token, by the kernels of prompts
            step = replace(step, num_decodes=0)
        if isinstance(step.adapter_T, np.ndarray):
            step = replace(step, adapter_T=stage(step.adapter_T, self._device))
        x_WH = self._model.forward(step)
        if (experts := self._model.experts_read()) is not None:
            flight.experts.append(retrieved(experts))
        behind = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)  # so many drafts
        hidden_PH = x_WH[stage(wanted.last(sizes), self._device)]
        out_2P = torch.zeros(2, len(behind), dtype=torch.int32, device=self._device)
        out_2P[1] = hidden_PH.isfinite().all(1).logical_not_()
        for place, vector_H in self._pooler.of(part, x_WH, wanted):
            flight.pooled[int(places[place])] = retrieved(vector_H)
        for own, place in enumerate(places[part.num_decodes :].tolist(), part.num_decodes):
            owed = self._scores.owed(flight.plan, place, x_WH[wanted.span(own)])  # of no decode
            flight.prompts += [
                (place, low, self._chooser.taken(logits_SV, tokens_S, tops))
                for low, logits_SV, tokens_S, tops in owed
            ]
        self._bind(flight)
        of = np.repeat(places, sizes)
        sampling = np.flatnonzero(flight.plan.sample[of] != SAMPLE_NONE)
        for low in range(0, len(sampling), self._capacity.num_rows):
            some = sampling[low : low + self._capacity.num_rows]
            at = stage(some, self._device)
            logits_SV = self._model.logits(hidden_PH[at], len(at))
            out_2P[:, at] = self._choose(logits_SV, flight, of[some], behind[some])
        step.land()
        return flight.firsts[of] + behind, out_2P

    def _choose(self, logits_SV: Tensor, flight: Flight, places: Places, behind: Places) -> Tensor:
        """Sample rows at these places of the plan, so many drafts behind their own tokens: [2, S]; zeros for
        those that do not sample. Their tokens stay for the next step."""
        plan = flight.plan
        lens = (plan.start + plan.count - plan.draft)[places] + behind
        lens *= plan.sample[places] != SAMPLE_NONE
        rows_S, lens_S = stage(np.stack([plan.row[places], lens]).astype(np.int32), self._device)
        make = torch.empty if flight.masks is None else torch.zeros
        out_2S = make(2, len(places), dtype=torch.int32, device=self._device)
        allowed = self._allowed(flight.masks, places, behind)
        self._chooser.choose(logits_SV, rows_S, lens_S, out_2S, allowed)
        self._score(flight, logits_SV, lens_S, out_2S[0], flight.firsts[places] + behind, places)
        return out_2S

    def _allowed(self, masks: Masks | None, places: Places, behind: Places) -> Allowed | None:
        """What grammars leave to these positions, on its way to the device."""
        if masks is None:
            return None
        which_S = stage(masks.of(places, behind), self._device)
        masks.filled.result()
        return Allowed(bits=masks.bits_NW.to(self._device, non_blocking=True), which_S=which_S)

    def _score(
        self, flight: Flight, logits_SV: Tensor, lens_S: Tensor, tokens_S: Tensor, positions: Places,
        places: Places | None = None, at: Places | None = None,
    ) -> None:  # fmt: skip
        """Log-probabilities of the rows that asked for them. positions: of the N; places: None where they are
        the same; at: their rows of the tensors, None for one after another."""
        rows = flight.plan.row[positions if places is None else places]
        scores = self._chooser.scores(logits_SV, lens_S, tokens_S, rows, positions, at)
        if scores is not None:
            flight.scores.append(scores)
