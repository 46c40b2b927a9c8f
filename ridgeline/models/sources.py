"""Where each of our weights comes from: checkpoint tensors laid one below another. Reads no file."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One checkpoint tensor of a weight.

    rows: how many of the weight's rows it is, None for all. interleaved_heads: number of heads whose rows the
    file holds as rotary pairs (2i, 2i + 1) instead of (i, i + width / 2), to be put back in order (GGUF files
    of the llama architecture); 0 when in order.
    """

    name: str
    rows: int | None = None
    interleaved_heads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The parts of one weight, concatenated on rows in this order. added: to every number of it (norms that
    files hold less one)."""

    parts: tuple[Part, ...]
    added: float = 0.0


def one(name: str, added: float = 0.0) -> Source:
    """A weight that the checkpoint holds as it is, less `added`."""
    return Source(parts=(Part(name=name),), added=added)


def stacked(names: Sequence[str], rows: Sequence[int], interleaved_heads: Sequence[int] = ()) -> Source:
    """A weight of several tensors of so many rows each."""
    heads = interleaved_heads or (0,) * len(names)
    return Source(parts=tuple(Part(name=n, rows=r, interleaved_heads=h)
                              for n, r, h in zip(names, rows, heads, strict=True)))


def row_order(rows: int, heads: int) -> list[int]:
    """Stored row of each of our rows, for a part with interleaved heads."""
    half = rows // heads // 2
    return [2 * (half * head + i) + side for head in range(heads) for side in (0, 1) for i in range(half)]
