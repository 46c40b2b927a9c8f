"""The rooms of blocks/: a spec's `kind` -> the module that runs it. A new room is one line here."""

from collections.abc import Callable
from typing import Any

from ridgeline.base.table import Table
from ridgeline.blocks.attention import gpu
from ridgeline.blocks.attention.module import Attention
from ridgeline.blocks.attention.shared import SharedAttention
from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.gated_delta.module import GatedDelta
from ridgeline.blocks.mamba2.module import Mamba2
from ridgeline.blocks.mla.module import Mla
from ridgeline.blocks.mlp.module import Mlp
from ridgeline.blocks.moe.gpu import GpuMoe
from ridgeline.blocks.moe.module import Moe
from ridgeline.blocks.moe.spec import MoeSpec
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.step import Block


def _attention(spec: AttentionSpec, parts: Parts) -> Block:
    if spec.reads_layer is not None:
        return SharedAttention(spec, parts)
    if parts.gpu is not None and gpu.fits(spec):
        return gpu.GpuAttention(spec, parts, parts.gpu)
    return Attention(spec, parts)


def _moe(spec: MoeSpec, parts: Parts) -> Block:
    return Moe(spec, parts) if parts.gpu is None else GpuMoe(spec, parts, parts.gpu)


# a room's module takes its own room's spec, which a table of all rooms cannot name
BLOCKS: Table[Callable[[Any, Parts], Block]] = Table("block", {
    "attention": _attention, "gated_delta": GatedDelta, "mamba2": Mamba2, "mla": Mla, "mlp": Mlp,
    "moe": _moe})
