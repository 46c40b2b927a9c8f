"""The kernels under test, and random quantized weights as a checkpoint holds them, with the gguf library's
reading of them."""

import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from ridgeline.kernels.cpu.native import Native, native, why_none
from ridgeline.models.files.stored import FORMATS
from ridgeline.nn.rows import SCALES
from ridgeline.quant.format import GgufBlocks
from ridgeline.spec.block import ParamSpec


def kernels() -> Native:
    """This machine's library. Only a machine without a compiler may do without."""
    found = native()
    if found is None and shutil.which("cc") is None:
        pytest.skip(why_none())
    assert found is not None, why_none()
    return found


def random_part(kind: str, rows: int, columns: int, seed: int = 0) -> GgufBlocks:
    """Random bits in every field; the fp16 scales are of ordinary size and both signs."""
    random = np.random.default_rng(seed)
    elements, block_bytes = FORMATS[kind]
    blocks = random.integers(0, 256, (rows * columns // elements, block_bytes), np.uint8)
    offset, count = SCALES[kind]
    scales = random.uniform(-0.02, 0.02, (len(blocks), count)).astype(np.float16)
    blocks[:, offset: offset + 2 * count] = scales.view(np.uint8)
    return GgufBlocks(kind=kind, columns=columns, raw_RB=blocks.reshape(rows, -1))


def values(part: GgufBlocks) -> Tensor:
    """float32 [rows, columns]."""
    kind = GGMLQuantizationType[part.kind.upper()]
    return torch.from_numpy(np.array(dequantize(part.raw_RB, kind), np.float32))


@dataclass(frozen=True)
class Source:
    """A SourceWeight of parts stacked on rows."""

    parts: tuple[GgufBlocks, ...]
    name: str = "layers.0.mlp.gate_up.weight"

    @property
    def param(self) -> ParamSpec:
        return ParamSpec(name="weight", role="linear",
                         shape=(sum(part.rows for part in self.parts), self.parts[0].columns))

    def blocks(self) -> tuple[GgufBlocks, ...]:
        return self.parts

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.cat([values(part) for part in self.parts]).to(device, dtype)


@dataclass(frozen=True)
class Plain:
    """A SourceWeight in plain numbers."""

    weight: Tensor
    name: str = "layers.0.attn.out.weight"

    @property
    def param(self) -> ParamSpec:
        return ParamSpec(name="weight", shape=tuple(self.weight.shape), role="linear")

    def blocks(self) -> None:
        return None

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.weight.to(device, dtype)
