"""How a weight is held in memory: the seam between loading (nn/load) and a scheme, one file a scheme here.

A `Packing` turns a source weight into what a linear computes with: a plain tensor of some dtype, or a
scheme's own object. It is given the checkpoint's blocks where those are packed already, so nothing is
unpacked in between. Knows no model and no file. Legend: R rows (output features), C columns, B bytes of a
row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.spec.block import ParamSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufBlocks:
    """Rows of a weight as ggml's blocks, in our row order.

    kind: "q4_1", "q8_0", "mxfp4", ... raw_RB may be a view of the mapped file, not to be written.
    """

    kind: str
    columns: int
    raw_RB: NDArray[np.uint8]

    @property
    def rows(self) -> int:
        return self.raw_RB.shape[0]


class SourceWeight(Protocol):
    """One weight of a checkpoint (or a random one), read when asked."""

    @property
    def name(self) -> str: ...

    @property
    def param(self) -> ParamSpec: ...

    def blocks(self) -> tuple[GgufBlocks, ...] | None:
        """The stored blocks, one entry a checkpoint tensor, in row order; all scales are finite.

        Entries may differ in kind. None when a part is stored in plain numbers or in blocks of a rarer kind.
        """
        ...

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The weight in its full shape; refuses NaN and Inf. Needs little more memory than the result."""
        ...


class Held(Protocol):
    """A weight that is no plain tensor."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Its tensors by name, for the disk cache; `Packing.restore` takes them back."""
        ...


class Packed(Held, Protocol):
    """A matrix in a scheme's own form. Legend: T tokens, K input features, N output features.

    One that holds an embedding also has `rows(ids_T) -> [T, K]`; see nn/linear and nn/embed for what more it
    may do.
    """

    def apply(self, x_TK: Tensor, prefill_from: int) -> Tensor:
        """x @ W.T, [T, N] new memory of x's dtype; tokens before prefill_from take the decode path."""
        ...


P_co = TypeVar("P_co", bound=Held | Tensor, covariant=True)


class Packing(Protocol[P_co]):
    """A way to hold weights; equal packings make equal objects."""

    @property
    def key(self) -> str:
        """Names the scheme, its parameters and the version of its layout; in the disk cache's key."""
        ...

    @property
    def cached(self) -> bool:
        """True when packing costs enough time to keep the result on disk."""
        ...

    def pack(self, weight: SourceWeight, device: torch.device) -> P_co: ...

    def restore(self, param: ParamSpec, tensors: Mapping[str, Tensor], device: torch.device) -> P_co:
        """The same object from its tensors, which may be memory-mapped and must not be written."""
        ...


@dataclass(frozen=True, slots=True)
class Dense:
    """A plain tensor of one dtype."""

    dtype: torch.dtype

    @property
    def key(self) -> str:
        return str(self.dtype)

    @property
    def cached(self) -> bool:
        return False

    def pack(self, weight: SourceWeight, device: torch.device) -> Tensor:
        """The weight in its shape."""
        return weight.dense(self.dtype, device)

    def restore(self, param: ParamSpec, tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """The tensor named "weight"."""
        return tensors["weight"].to(device)
