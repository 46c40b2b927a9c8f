"""Decode steps of a model whose layers are kernel calls and nothing else: recorded once, then run in one
call.

Owns the recording and its proof: the first steps run layer by layer as well, and a recording whose result
is not the same to the bit (something between the kernels was missed) is never used. Legend: T tokens, H
hidden.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.blocks.step import Block, Kept, Step
from ridgeline.kernels.cpu.native import Native
from ridgeline.kernels.cpu.tape import Tape

_log = logging.getLogger(__name__)
MAX_ROWS = 64  # with more rows the kernels' time hides what lies between them
TRIALS = 3  # steps that must be equal both ways before a recording is trusted


def run_layers(blocks: Sequence[Block], x_TH: Tensor, step: Step, prepared: dict[object, object]) -> Tensor:
    """The residual stream after the blocks. prepared: what blocks of a share key have in common,
    filled here.
    """
    for block in blocks:
        key = block.share_key()
        if key not in prepared:
            prepared[key] = block.prepare(step)
        x_TH = block(x_TH, step, prepared[key])
    return x_TH


class Replay:
    """Runs decode steps of up to MAX_ROWS rows; for any other step it gives None."""

    def __init__(self, native: Native, blocks: Sequence[Block]) -> None:
        self._native = native
        self._blocks = blocks
        self._tape: Tape | None = None
        self._trials = 0
        self._refused = False
        self._kept: list[tuple[Block, Kept]] = []
        self._in_TH = self._out_TH = torch.empty(0)

    def __call__(self, x_TH: Tensor, step: Step) -> Tensor | None:
        """The residual stream after the last layer, valid until the next step."""
        rows = step.num_tokens
        if self._refused or rows != step.num_decodes or not 0 < rows <= MAX_ROWS:
            return None
        if self._tape is None:
            return self._record(x_TH, step)
        if self._trials >= TRIALS:
            return self._run(self._tape, x_TH, step)
        self._trials += 1
        out_TH = self._run(self._tape, x_TH, step)  # first, so that what stays in the cache is the layers'
        expected_TH = run_layers(self._blocks, x_TH, step, {})
        if not torch.equal(out_TH.nan_to_num(), expected_TH.nan_to_num()):
            self._refuse()
        return expected_TH

    def _run(self, tape: Tape, x_TH: Tensor, step: Step) -> Tensor:
        for block, kept in self._kept:
            kept.receive(block.prepare(step))
        rows = step.num_tokens
        self._in_TH[:rows] = x_TH
        self._native.run(tape, rows=rows, longest=int(step.starts.max()))
        return self._out_TH[:rows]

    def _record(self, x_TH: Tensor, step: Step) -> Tensor:
        """Run the layers and keep their calls."""
        prepared: dict[object, object] = {}
        self._kept.clear()
        for block in self._blocks:
            key = block.share_key()
            if key not in prepared:
                prepared[key] = block.prepare(step)
                if isinstance(shared := prepared[key], Kept):
                    if (kept := shared.with_room(MAX_ROWS)) is None:
                        self._refuse()
                        return run_layers(self._blocks, x_TH, step, {})
                    prepared[key] = kept
                    self._kept.append((block, kept))
        self._in_TH = torch.empty(MAX_ROWS, x_TH.shape[1])
        tape = self._native.tape = Tape(MAX_ROWS, torch.get_num_threads())
        try:
            out_TH = run_layers(self._blocks, self._in_TH[: len(x_TH)].copy_(x_TH), step, prepared)
        finally:
            self._native.tape = None
        needed_bytes = MAX_ROWS * out_TH.stride(0) * out_TH.element_size()
        if not len(tape) or out_TH.untyped_storage().nbytes() < needed_bytes:
            self._refuse()  # the last block's result is no kernel's
            return out_TH
        self._tape = tape
        self._out_TH = out_TH.as_strided((MAX_ROWS, x_TH.shape[1]), out_TH.stride())
        return out_TH

    def _refuse(self) -> None:
        self._refused, self._tape = True, None
        self._kept.clear()
        _log.info("decode steps run layer by layer: something other than kernels stands between them")
