"""CUDA graphs of decode steps: from the gathered inputs to the sampled token, one graph for each of a few
sizes.

A size's first step runs kernel by kernel, which compiles what is not compiled yet; then it is recorded. All
graphs share one pool of memory, since no two run at once. Knows no plan.

Legend: S places of a step (rows, then idle ones).
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.blocks.step import GroupStep, Step
from ridgeline.kernels.step_ends import gather, greedy
from ridgeline.nn.build import Model
from ridgeline.runner.rows import Rows

FIELDS = 4  # of a place: runner row, position, token, reach


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """Ascending sizes up to max_rows: close together where a row costs little beside reading the weights."""
    steps = [1, 2, 4, *range(8, 32, 8), *range(32, 128, 16), *range(128, 256, 32), *range(256, 512, 64)]
    steps += range(512, max_rows, 128)
    return (*(size for size in steps if size < max_rows), max_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What a step left on the device, good until the next: out_2S int32, the greedy tokens and 1 where a
    row's logits are not finite; logits_SV float32. Places are the step's rows and idle ones."""

    out_2S: Tensor
    logits_SV: Tensor


class DecodeGraphs:
    """Runs steps of one token a row for up to max_rows rows, on the current stream."""

    def __init__(self, model: Model, rows: Rows, *, max_rows: int) -> None:
        self._model = model
        self._rows = rows
        self._sizes = graph_sizes(max_rows)
        device = rows.table.device
        self._staged = torch.zeros(FIELDS * max_rows, dtype=torch.int32, device=device)
        self._out = torch.zeros(2 * max_rows, dtype=torch.int32, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._decoded: dict[int, Decoded] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream(device)

    @property
    def missing(self) -> tuple[int, ...]:
        """Sizes that have no graph yet, ascending."""
        return tuple(size for size in self._sizes if size not in self._graphs)

    def run(
        self, staged: Tensor, rows: NDArray[np.int32], positions: NDArray[np.int32],
        tokens: NDArray[np.int32], reach: NDArray[np.int64],
    ) -> Decoded:  # fmt: skip
        """One step. staged: pinned int32 [FIELDS * max_rows] that nobody writes until the step is over.
        tokens below 0 stand for the row's last one."""
        num = len(rows)
        size = self._sizes[bisect_left(self._sizes, num)]
        staged = staged[: FIELDS * size]
        fields = staged.numpy().reshape(FIELDS, size)
        fields[0, :num], fields[1, :num], fields[2, :num], fields[3, :num] = rows, positions, tokens, reach
        if num < size:
            fields[0, num:], fields[1, num:], fields[2, num:], fields[3, num:] = self._rows.spare, -1, 0, 1
        self._staged[: FIELDS * size].copy_(staged, non_blocking=True)
        if size in self._graphs:
            self._graphs[size].replay()
        else:
            with torch.inference_mode():
                self._step(size)
                self.record(size)
        return self._decoded[size]

    def record(self, size: int) -> None:
        """Make a size's graph. Nothing runs; the kernels must have been compiled."""
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._step(size)
            finally:
                graph.capture_end()
        here.wait_stream(self._side)
        self._graphs[size] = graph

    def _step(self, size: int) -> None:
        staged_4S = self._staged[: FIELDS * size].view(FIELDS, size)
        found = gather(staged_4S, self._rows.last_token, self._rows.table)
        widths = [table.shape[1] for table in self._rows.tables]
        slots = found.ids_S[:0]  # decode kernels find their places by the table
        step = Step(
            ids_T=found.ids_S,
            positions_T=found.positions_S,
            reach_T=found.reach_S,
            lengths_S=found.lens_S,
            starts=np.zeros(size, np.int64),
            counts=np.ones(size, np.int64),
            num_decodes=size,
            groups=tuple(
                GroupStep(table_SP=table, slots_T=slots) for table in found.table_SX.split(widths, 1)
            ),
        )
        logits_SV = self._model.logits(self._model.forward(step), size)
        out_2S = self._out[: 2 * size].view(2, size)
        greedy(logits_SV, staged_4S[0], self._rows.last_token, out_2S)
        self._decoded[size] = Decoded(out_2S=out_2S, logits_SV=logits_SV)
