"""CUDA graphs of decode steps: from the gathered inputs to the sampled token, one graph for each of a few
sizes.

All sizes are recorded at the start, or else a size when it is first needed; so is one that ends with the
logits, for steps that choose under grammars, and one whose rows read shared prefixes once. Where a model has
room for adapters, all are recorded a second time with what those add, for steps in which some row has one;
the others pay nothing. Recording runs nothing on the GPU, but compiles what is not compiled yet. All graphs
share one pool of memory, since no two run at once.
Knows no plan.

Legend: S places of a step (rows, then idle ones).
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.blocks.step import GroupStep, Step
from ridgeline.kernels.decode_linear.tuning import BUCKETS
from ridgeline.kernels.step_inputs import gather
from ridgeline.nn.build import Model
from ridgeline.runner.choose import Chooser
from ridgeline.runner.prefixes import Groups, SharedPrefixes
from ridgeline.runner.rows import Rows

_log = logging.getLogger(__name__)
FIELDS = 4  # of a place: runner row, position, token, reach


def up_to(sizes: Iterable[int], most: int) -> tuple[int, ...]:
    """Those below `most`, and `most`."""
    return (*(size for size in sizes if size < most), most)


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """Ascending sizes up to max_rows: the rows that the kernels' tiles are made for, and close together where
    a row costs a product's share. Every size costs a start its recording. Products of 448 rows take longer
    than those of 512 (cuBLAS on an H200: 407 us a layer of an 8B for 303), so there is no such size."""
    steps = {*BUCKETS, 8, *range(256, 448, 64), *range(512, max_rows, 128)}
    return up_to(sorted(steps), max_rows)


@dataclass(frozen=True, slots=True)
class Variant:
    """A graph. size: places. chooses: else it ends with the logits. shares: rows have prefixes in common.
    adapted: with what rows' adapters add."""

    size: int
    chooses: bool = True
    shares: bool = False
    adapted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What a step left on the device, good until the next. Places are the step's rows and idle ones.

    out_2S int32: tokens, and 1 where a row failed, where it chose. lens_S int32: tokens known of each row, 0
    where idle. experts: how many were read, see Model.experts_read.
    """

    out_2S: Tensor
    logits_SV: Tensor
    lens_S: Tensor
    experts: Tensor | None


class Recorder:
    """Makes graphs, which share one pool of memory. full: there was none for one more."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream(device)
        self.full = False

    def renew(self) -> None:
        """All graphs so far are gone; a pool ends with its last graph."""
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], Decoded]) -> tuple[torch.cuda.CUDAGraph, Decoded] | None:
        """None where memory does not suffice: no more are made then, steps go on without."""
        if self.full:
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.inference_mode(), torch.cuda.stream(self._side):
                graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")  # kernels may be loaded
                try:
                    decoded = step()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            self.full = True
            _log.warning("no more graphs of steps: %s", error)
            return None
        return graph, decoded


class DecodeGraphs:
    """Runs steps of one token a row for up to max_rows rows, on the current stream."""

    def __init__(
        self, model: Model, rows: Rows, chooser: Chooser, recorder: Recorder, *, max_rows: int,
        prefixes: SharedPrefixes | None = None,
    ) -> None:  # fmt: skip
        """prefixes: which `run` may be given; None where no rows share any."""
        self._model = model
        self._rows = rows
        self._chooser = chooser
        self._sizes = graph_sizes(max_rows)
        self._device = rows.table.device
        self._staged = torch.zeros(FIELDS * max_rows, dtype=torch.int32, device=self._device)
        self._out = torch.zeros(2 * max_rows, dtype=torch.int32, device=self._device)
        self._ready: dict[Variant, tuple[torch.cuda.CUDAGraph, Decoded]] = {}
        self._prefixes = prefixes
        self._recorder = recorder

    @property
    def shares(self) -> bool:
        """True when rows may read prefixes together."""
        return self._prefixes is not None

    def run(
        self, staged: Tensor, rows: NDArray[np.int32], positions: NDArray[np.int32],
        tokens: NDArray[np.int32], reach: NDArray[np.int64], *, chooses: bool = True, groups: Groups = (),
    ) -> Decoded:  # fmt: skip
        """One step. staged: pinned int32 [FIELDS * max_rows] that nobody writes until the step is over.
        tokens below 0 stand for the row's last one. chooses: else it ends with the logits. groups: prefixes
        that are read once."""
        num = len(rows)
        size = self._sizes[bisect_left(self._sizes, num)]
        staged = staged[: FIELDS * size]
        fields = staged.numpy().reshape(FIELDS, size)
        fields[0, :num], fields[1, :num], fields[2, :num], fields[3, :num] = rows, positions, tokens, reach
        if num < size:
            fields[0, num:], fields[1, num:], fields[2, num:], fields[3, num:] = self._rows.spare, -1, 0, 1
        self._staged[: FIELDS * size].copy_(staged, non_blocking=True)
        if groups:
            assert self._prefixes is not None
            self._prefixes.hold(groups)
        variant = Variant(size, chooses, bool(groups), adapted=bool(self._rows.adapter[rows].any()))
        if variant in self._ready:
            graph, decoded = self._ready[variant]
            graph.replay()
            return decoded
        with torch.inference_mode():
            decoded = self._step(variant)
        self._record(variant)
        return decoded

    def record_all(self) -> None:
        """Record every size anew; the other variants when they are needed, after one of shared prefixes, so
        that its kernels are compiled."""
        self._ready.clear()
        if self._prefixes is not None:
            self._record(Variant(self._sizes[-1], shares=True))
        for adapted in (False, True) if self._model.adapters is not None else (False,):
            for size in self._sizes:
                self._record(Variant(size, adapted=adapted))

    def _record(self, variant: Variant) -> None:
        made = self._recorder.record(lambda: self._step(variant))
        if made is not None:
            self._ready[variant] = made

    def _step(self, variant: Variant) -> Decoded:
        size, prefixes = variant.size, self._prefixes if variant.shares else None
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
            adapter_T=self._rows.adapters[staged_4S[0].long()] if variant.adapted else None,
            groups=tuple(
                GroupStep(table_SP=table, slots_T=slots) for table in found.table_SX.split(widths, 1)
            ),
            shared=None if prefixes is None else prefixes.shared(size),
            shared_group=None if prefixes is None else prefixes.group,
        )
        x_SH = self._model.forward(step)
        experts, logits_SV = self._model.experts_read(), self._model.logits(x_SH, size)
        out_2S = self._out[: 2 * size].view(2, size)
        if variant.chooses:
            self._chooser.choose(logits_SV, staged_4S[0], found.lens_S, out_2S)
        return Decoded(out_2S=out_2S, logits_SV=logits_SV, lens_S=found.lens_S, experts=experts)
