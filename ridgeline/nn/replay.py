"""Decode steps of a model whose layers are kernel calls and nothing else: recorded once, then run in one
call.

Owns the recording and its proof: the first steps run layer by layer as well, and a recording whose result
is not the same to the bit (something between the kernels was missed) is never used. Legend: T tokens, H
hidden.
"""

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.step import Block, Kept, Step
from ridgeline.kernels.cpu.attention import attention_bytes
from ridgeline.kernels.cpu.native import Native
from ridgeline.kernels.cpu.tape import KEY_CHUNK, Tape
from ridgeline.quant.packed import product_bytes
from ridgeline.spec.model import ModelSpec

_log = logging.getLogger(__name__)
MAX_ROWS = 64  # with more rows the kernels' time hides what lies between them
TRIALS = 3  # steps that must be equal both ways before a recording is trusted


def run_layers(blocks: Sequence[Block], x_TH: Tensor, step: Step, prepared: dict[Hashable, object]) -> Tensor:
    """The residual stream after the blocks. prepared: what blocks of a share key have in common,
    filled here.
    """
    for block in blocks:
        key = block.share_key()
        if key not in prepared:
            prepared[key] = block.prepare(step)
        x_TH = block(x_TH, step, prepared[key])
    return x_TH


def recorded_bytes(spec: ModelSpec, *, threads: int, max_tokens: int) -> int:
    """Memory that the recording of a packed model's decode steps holds, up to block tables and angles.

    max_tokens: of a sequence. Each kernel's result has room of its own, work memory is shared by kind of
    call.
    """
    chunks = max_tokens // KEY_CHUNK + 1
    floats, attends, products = spec.hidden_size, [], []
    for _, block in (pair for layer in spec.layers for pair in layer.blocks):
        products += [product_bytes(MAX_ROWS, param.shape[1], 2)
                     for param in block.params() if param.role == "linear"]
        if isinstance(block, AttentionSpec):
            floats += 2 * block.q_size + 2 * block.kv_size + block.hidden_size
            attends.append(attention_bytes(MAX_ROWS, block.num_heads, block.head_dim, threads=threads,
                                           chunks=chunks))
        elif isinstance(block, MlpSpec):
            floats += block.intermediate_size + block.hidden_size
    return 4 * MAX_ROWS * floats + _growing(attends) + _growing(products)


def _growing(sizes: Iterable[int]) -> int:
    """All that is held once each size has been asked for: whatever was larger than all before it."""
    largest = total = 0
    for size in sizes:
        if size > largest:
            largest, total = size, total + size
    return total


class Replay:
    """Runs decode steps of up to MAX_ROWS rows; for any other step it gives None."""

    def __init__(self, native: Native, blocks: Sequence[Block]) -> None:
        self._native = native
        self._blocks = blocks
        self._tape: Tape | None = None
        self._trials = 0
        self._refused = False
        self._first = {block.share_key(): block for block in reversed(blocks)}  # of each share key
        self._kept: dict[Hashable, Kept] = {}
        self._in_TH = self._out_TH = torch.empty(0)

    def __call__(self, x_TH: Tensor, step: Step) -> Tensor | None:
        """The residual stream after the last layer, valid until the next step."""
        rows = step.num_tokens
        if self._refused or rows != step.num_decodes or not 0 < rows <= MAX_ROWS:
            return None
        if self._tape is None:
            return self._record(x_TH, step)
        prepared = self._prepare(step)
        out_TH = self._run(self._tape, x_TH, step, prepared)
        if self._trials >= TRIALS:
            return out_TH
        self._trials += 1  # the layers come second, so that what stays in the cache is theirs
        expected_TH = run_layers(self._blocks, x_TH, step, prepared)
        if not torch.equal(out_TH.nan_to_num(), expected_TH.nan_to_num()):
            self._refuse()
        return expected_TH

    def _prepare(self, step: Step) -> dict[Hashable, object]:
        return {key: block.prepare(step) for key, block in self._first.items()}

    def _run(self, tape: Tape, x_TH: Tensor, step: Step, prepared: Mapping[Hashable, object]) -> Tensor:
        for key, kept in self._kept.items():
            kept.receive(prepared[key])
        rows, counts = step.num_tokens, step.counts if step.runs is None else step.runs
        self._in_TH[:rows] = x_TH
        self._native.run(tape, counts=counts, longest=int(step.starts.max()))
        return self._out_TH[:rows]

    def _record(self, x_TH: Tensor, step: Step) -> Tensor:
        """Run the layers and keep their calls."""
        prepared = self._prepare(step)
        for key, shared in prepared.items():
            if isinstance(shared, Kept):
                if (kept := shared.with_room(MAX_ROWS)) is None:
                    self._refuse()
                    return run_layers(self._blocks, x_TH, step, prepared)
                prepared[key] = self._kept[key] = kept
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
