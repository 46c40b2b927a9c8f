"""An adapter's numbers, from its file into the form that products take.

Knows no slot and no request. Legend: K input features, R ranks of all pairs of a weight, r of one, n rows of
one pair.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.errors import CheckpointError
from ridgeline.models.adapter import RANKS, AdapterFile, Pair
from ridgeline.models.files.stored import StoredTensor, map_file

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """What a pair adds: to columns [first, until) of a product, from columns [low, high) of x @ a_KR."""

    first: int
    until: int
    low: int
    high: int
    b_rn: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What an adapter adds to the product of one weight. The first matrices of its pairs stand side by side,
    zeros after them up to a whole number of RANKS: a library's way of summing at an odd end may hang on the
    row. The second ones hold their scales."""

    a_KR: Tensor
    strips: tuple[Strip, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """deltas: by full weight name. digest: of all that the products see: adapters of equal digest compute the
    same. images: what slots of a device copy, by the same names, once they made it (`StackedSlots.ready`)."""

    deltas: Mapping[str, Delta]
    digest: str
    rank: int
    num_bytes: int
    images: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


def load_adapter(
    file: AdapterFile, seats: Container[str], dtype: torch.dtype = torch.float32
) -> Adapter:
    """Read an adapter's numbers as `dtype`. seats: the weights whose products can take one.

    CheckpointError for a weight without a seat, and for numbers that are none or not finite in `dtype`.
    """
    by_weight: dict[str, list[Pair]] = {}
    for pair in file.pairs:
        if pair.place.weight not in seats:
            raise CheckpointError(
                f"{file.path}: a pair for {pair.place.part.name}, whose block here does not use "
                "it as a linear layer: it takes no adapter"
            )
        by_weight.setdefault(pair.place.weight, []).append(pair)
    digest, num_bytes = blake2b(digest_size=16), 0
    deltas = {}
    for name, pairs in sorted(by_weight.items()):
        delta = deltas[name] = _delta(pairs, dtype)
        for part in (delta.a_KR, *(strip.b_rn for strip in delta.strips)):
            if not torch.isfinite(part).all():
                raise CheckpointError(f"{file.path}: numbers for {name} are too large for {dtype}: use dtype "
                                      "bfloat16 or float32")
            num_bytes += part.nbytes
            digest.update(part.view(torch.uint8).numpy().tobytes())
        digest.update(repr([name, *((s.first, s.until, s.low, s.high) for s in delta.strips)]).encode())
    return Adapter(deltas=deltas, digest=digest.hexdigest(), rank=file.rank, num_bytes=num_bytes)


def _delta(pairs: Sequence[Pair], dtype: torch.dtype) -> Delta:
    pairs = sorted(pairs, key=lambda pair: pair.place.first)
    strips, low = [], 0
    for pair in pairs:
        place, part = pair.place, pair.place.part
        b_nr = _read(pair.b)
        if part.interleaved_heads:
            b_nr = b_nr[part.order(place.rows)]
        b_rn = b_nr.mul_(pair.scale).to(dtype).t().contiguous()
        strips.append(
            Strip(first=place.first, until=place.first + place.rows, low=low, high=low + pair.rank, b_rn=b_rn)
        )
        low += pair.rank
    a_RK = torch.zeros(-(-low // RANKS) * RANKS, pairs[0].place.columns)
    torch.cat([_read(pair.a) for pair in pairs], out=a_RK[:low])
    return Delta(a_KR=a_RK.to(dtype).t().contiguous(), strips=tuple(strips))


def _read(tensor: StoredTensor) -> Tensor:
    """[*shape] in memory of its own."""
    if tensor.format not in _DTYPES:
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name} is stored as {tensor.format}: use F32, F16 or BF16"
        )
    raw = np.frombuffer(map_file(tensor.file), np.uint8, tensor.num_bytes, tensor.offset_bytes)
    found = torch.from_numpy(raw.copy()).view(_DTYPES[tensor.format]).view(tensor.shape).float()
    if not torch.isfinite(found).all():
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name} holds NaN or Inf: the file is damaged; fetch it again"
        )
    return found
