"""CUDA graphs of short steps with prompts: decodes and a few chunks of few tokens, padded to a size.

Kernel by kernel such a step takes what its launches take, a multiple of the GPU's time; how short it must be
hangs on the model (`most_tokens`). A size is recorded when it is first needed. Padding has the spare row's
page to write to, and nobody reads what becomes of it.

Legend: S places of decodes, N of all tokens, C of chunks.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.blocks.step import GroupStep, Step
from ridgeline.kernels.prefill_attention import LIBRARY_TOKENS
from ridgeline.kernels.step_inputs import gather
from ridgeline.nn.build import Model
from ridgeline.runner.choose import Chooser
from ridgeline.runner.graphs import FIELDS, Decoded, Recorder, up_to
from ridgeline.runner.rows import Rows
from ridgeline.schedule.plan import SAMPLE_NONE, StepPlan
from ridgeline.spec.cache import CacheLayout
from ridgeline.spec.model import ModelSpec

Numbers = NDArray[np.int32]
_CHUNKS = 16
_DECODES = (0, 8, 16, 32, 64, 128, 256, 512)
_TOKENS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_MANY = 2048  # tokens beyond which places of decodes that are idle cost little, and recording a size much
_DECODES_BESIDE_MANY = (0, 64, 256, 512)
# What launching a layer takes the host (350 to 1,500 us were seen), and what products reach (an H200, Python
# 3.12): from where the GPU takes longer, nothing is gained and padding is lost.
_LAUNCH_S, _FLOPS_S = 450e-6, 600e12


def most_tokens(spec: ModelSpec, max_tokens: int) -> int:
    """Of a step whose launches take longer than its products, idle ones included. A model with experts reads
    more of them than a token multiplies, so all are counted. max_tokens: of a plan."""
    held = sum(param.num_elements for name, param in spec.params() if name.startswith("layers."))
    most = int(_LAUNCH_S * _FLOPS_S * len(spec.layers) / (2 * held))
    idle = max(b - a for a, b in pairwise(_DECODES_BESIDE_MANY)) if max_tokens > _MANY else 0
    return min(max(most // _TOKENS[0] * _TOKENS[0], _TOKENS[0]), max_tokens + idle)


@dataclass(frozen=True, slots=True)
class Size:
    """Places of a graph. tokens: the decodes' included. adapted: with what rows' adapters add."""

    decodes: int
    tokens: int
    adapted: bool = False


class ShortGraphs:
    """Runs plans that `size_of` finds a size for, on the current stream."""

    def __init__(
        self, model: Model, rows: Rows, chooser: Chooser, recorder: Recorder, layout: CacheLayout, *,
        max_rows: int, max_tokens: int,
    ) -> None:  # fmt: skip
        """max_rows, max_tokens: of a plan."""
        self._model, self._rows, self._chooser, self._recorder = model, rows, chooser, recorder
        self._pages = [group.tokens_per_page for group in layout.groups]
        self._chunks = max(1, min(_CHUNKS, max_rows // 2))
        most_rows = max_rows - self._chunks
        self._decodes, self._beside_many = up_to(_DECODES, most_rows), up_to(_DECODES_BESIDE_MANY, most_rows)
        self._tokens = up_to(_TOKENS, most_tokens(model.spec, max_tokens))
        num = self.num_staged
        self._staged = torch.zeros(num, dtype=torch.int32, device=rows.table.device)
        self._out = torch.zeros(2 * max_rows, dtype=torch.int32, device=rows.table.device)
        self._ready: dict[Size, tuple[torch.cuda.CUDAGraph, Decoded]] = {}

    @property
    def num_staged(self) -> int:
        """Numbers that a step's pinned memory must hold."""
        return self._num(Size(self._decodes[-1], self._tokens[-1]))

    def record_prompts(self) -> None:
        """Forget all sizes and record those without decodes: what they compile is what all run."""
        self._ready.clear()
        for adapted in (False, True) if self._model.adapters is not None else (False,):
            for tokens in self._tokens:
                self._made(Size(0, tokens, adapted))

    def size_of(self, plan: StepPlan) -> Size | None:
        """None for a plan that is too long, or of too many chunks, or of one that a library attends to."""
        num, chunks = plan.num_decodes, plan.num_rows - plan.num_decodes
        if num > self._decodes[-1] or chunks > self._chunks or plan.count.max() >= LIBRARY_TOKENS:
            return None
        some = self._decodes if plan.num_tokens <= _MANY else self._beside_many
        decodes = some[bisect_left(some, num)]
        tokens = decodes + plan.num_tokens - num
        if tokens > self._tokens[-1]:
            return None
        adapted = bool(self._rows.adapter[plan.row].any())
        return Size(decodes, self._tokens[bisect_left(self._tokens, tokens)], adapted)

    def run(self, staged: Tensor, plan: StepPlan, size: Size) -> Decoded | None:
        """One step. staged: pinned int32 that nobody writes until the step is over. Places of the result: S
        of decodes, C of chunks. None where there is no graph, and nothing happened."""
        made = self._made(size)
        if made is None:
            return None
        self._fill(staged.numpy(), plan, size)
        num = self._num(size)
        self._staged[:num].copy_(staged[:num], non_blocking=True)
        graph, decoded = made
        graph.replay()
        return decoded

    def places(self, plan: StepPlan, size: Size) -> NDArray[np.int64]:
        """Where the plan's rows stand among the result's places."""
        at = np.arange(plan.num_rows)
        at[plan.num_decodes:] += size.decodes - plan.num_decodes
        return at

    def _made(self, size: Size) -> tuple[torch.cuda.CUDAGraph, Decoded] | None:
        """The size's graph; None where memory did not suffice."""
        if size not in self._ready:
            made = self._recorder.record(lambda: self._step(size))
            if made is None:
                return None
            self._ready[size] = made
        return self._ready[size]

    # ---- what is staged: [FIELDS, N] tokens, [C, 3] chunks, [3, S + C] rows: last token, runner row, length

    def _num(self, size: Size) -> int:
        return FIELDS * size.tokens + 6 * self._chunks + 3 * size.decodes

    def _fill(self, staged: Numbers, plan: StepPlan, size: Size) -> None:
        places, first, num = size.tokens, plan.num_decodes, plan.num_rows - plan.num_decodes
        fields = staged[: FIELDS * places].reshape(FIELDS, places)
        fields[:] = np.array([[self._rows.spare], [-1], [0], [1]], np.int32)
        counts, starts = plan.count[first:], plan.start[first:]
        firsts = counts.cumsum(dtype=np.int32) - counts
        behind = np.arange(counts.sum(), dtype=np.int32)
        rows, positions = np.repeat(plan.row[first:], counts), behind + np.repeat(starts - firsts, counts)
        self._place(fields, plan.row[:first], plan.start[:first], plan.tokens[:first])
        self._place(fields[:, size.decodes:], rows, positions, plan.tokens[first:])
        rest = staged[FIELDS * places: self._num(size)]
        rest[:] = 0
        chunks = rest[: 3 * self._chunks].reshape(-1, 3)
        chunks[:num, 0], chunks[:num, 1], chunks[:num, 2] = firsts, starts, counts
        sampled = rest[3 * self._chunks:].reshape(3, -1)
        sampled[1] = self._rows.spare
        at = self.places(plan, size)
        sampled[0, : size.decodes] = np.arange(size.decodes)
        sampled[0, at[first:]] = size.decodes + firsts + counts - 1
        sampled[1, at] = plan.row
        sampled[2, at] = np.where(plan.sample != SAMPLE_NONE, plan.start + plan.count, 0)

    def _place(self, fields: Numbers, rows: Numbers, positions: Numbers, tokens: Numbers) -> None:
        part = fields[:, : len(rows)]
        part[0], part[1], part[2] = rows, positions, tokens
        part[3] = np.maximum(self._rows.num_prompt[rows], positions + 1)

    def _step(self, size: Size) -> Decoded:
        places, sampled = size.tokens, size.decodes + self._chunks
        staged_4N = self._staged[: FIELDS * places].view(FIELDS, places)
        rest = self._staged[FIELDS * places: self._num(size)]
        last_S, rows_S, lens_S = rest[3 * self._chunks:].view(3, sampled)
        found = gather(staged_4N, self._rows.last_token, self._rows.table[:, :0])
        widths = [table.shape[1] for table in self._rows.tables]
        by_group = zip(self._rows.table[rows_S].split(widths, 1), self._rows.tables, self._pages)
        row_N, at_N = staged_4N[0].long(), found.positions_S
        step = Step(
            ids_T=found.ids_S,
            positions_T=at_N,
            reach_T=found.reach_S,
            lengths_S=found.lens_S,
            starts=np.zeros(sampled, np.int64),
            counts=np.ones(sampled, np.int64),
            num_decodes=size.decodes,
            groups=tuple(
                GroupStep(table_SP=table_SP, slots_T=every[row_N, at_N // per].long() * per + at_N % per)
                for table_SP, every, per in by_group
            ),
            adapter_T=self._rows.adapters[row_N] if size.adapted else None,
            chunks_C3=rest[: 3 * self._chunks].view(-1, 3),
            wanted_W=last_S,
        )
        x_SH = self._model.forward(step)
        experts, logits_SV = self._model.experts_read(), self._model.logits(x_SH, sampled)
        out_2S = self._out[: 2 * sampled].view(2, sampled)
        self._chooser.choose(logits_SV, rows_S, lens_S, out_2S)
        broken_S = x_SH.isfinite().all(1).logical_not_()
        out_2S[1].logical_or_(broken_S)
        return Decoded(out_2S=out_2S, logits_SV=logits_SV, lens_S=lens_S, experts=experts)
