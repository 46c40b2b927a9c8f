"""Where each of our weights comes from: checkpoint tensors laid one below another. Reads no file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One checkpoint tensor of a weight.

    interleaved_heads: number of heads whose rows the file holds as rotary pairs (2i, 2i + 1) instead of
    (i, i + width / 2), to be put back in order (GGUF files of the llama architecture); 0 when in order.
    """

    name: str
    interleaved_heads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The parts of one weight, concatenated on rows in this order."""

    parts: tuple[Part, ...]


def one(name: str) -> Source:
    """A weight that the checkpoint holds as it is."""
    return Source(parts=(Part(name=name),))


def stacked(names: Iterable[str], interleaved: Mapping[str, int] | None = None) -> Source:
    """A weight of several tensors; interleaved gives heads by tensor name."""
    heads = interleaved or {}
    return Source(parts=tuple(Part(name=name, interleaved_heads=heads.get(name, 0)) for name in names))
