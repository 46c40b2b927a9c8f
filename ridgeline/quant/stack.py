"""Stacks of matrices (experts): each matrix is packed on its own, as any other weight would be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ridgeline.quant.format import Packed, Packing, SourceWeight
from ridgeline.spec.block import ParamSpec


@runtime_checkable
class SourceStack(SourceWeight, Protocol):
    """A stack of a checkpoint."""

    def matrices(self) -> Sequence[SourceWeight]:
        """Each as a weight of its own."""
        ...


@dataclass(frozen=True, slots=True)
class Stack:
    """A weight [experts, N, K]; matrices: one an expert, [N, K]."""

    matrices: tuple[Packed | Tensor, ...]

    def tensors(self) -> Mapping[str, Tensor]:
        """Those of all matrices, by "expert.name"."""
        return {f"{i}.{name}": tensor for i, matrix in enumerate(self.matrices)
                for name, tensor in
                ({"weight": matrix} if isinstance(matrix, Tensor) else matrix.tensors()).items()}


@dataclass(frozen=True, slots=True)
class PackingStack:
    """Packs each matrix of a stack in one way."""

    each: Packing[Packed | Tensor]

    @property
    def key(self) -> str:
        return f"stack of {self.each.key}"

    @property
    def cached(self) -> bool:
        return self.each.cached

    def pack(self, weight: SourceWeight, device: torch.device) -> Stack:
        assert isinstance(weight, SourceStack), "only a stack has matrices to pack"
        return Stack(tuple(self.each.pack(matrix, device) for matrix in weight.matrices()))

    def restore(self, param: ParamSpec, tensors: Mapping[str, Tensor], device: torch.device) -> Stack:
        found: list[dict[str, Tensor]] = [{} for _ in range(param.shape[0])]
        for key, tensor in tensors.items():
            number, name = key.split(".", 1)
            found[int(number)][name] = tensor
        one = replace(param, shape=param.shape[1:])
        return Stack(tuple(self.each.restore(one, part, device) for part in found))
