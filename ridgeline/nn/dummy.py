"""Random weights for load_format "dummy": the same on every device, of sane scale, as fast as copying.

All values come from one pool of normal numbers of prime length; a weight is the pool laid end to end from an
offset given by its name, so rows differ although numbers repeat.
"""

import zlib

import torch
from torch import Tensor

from ridgeline.quant.format import GgufBlocks, SourceWeight
from ridgeline.spec.block import ParamSpec

_POOL = 1_048_573  # prime


class RandomWeights:
    """Every weight of a model, from one seed."""

    def __init__(self, seed: int) -> None:
        self._pool = _Pool(seed)

    def weight(self, name: str, param: ParamSpec, source: str) -> SourceWeight:
        """source: the full name that draws the values, so that a tied head equals its embedding."""
        return _RandomWeight(name, param, source, self._pool)


class _RandomWeight:
    """Matrices N(0, 1 / columns), norms about 1, biases about 0."""

    def __init__(self, name: str, param: ParamSpec, source: str, pool: "_Pool") -> None:
        self.name = name
        self.param = param
        self._start = zlib.crc32(source.encode()) % _POOL
        self._pool = pool

    def blocks(self) -> tuple[GgufBlocks, ...] | None:
        """None: random weights are floats."""
        return None

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The weight in its shape."""
        out = torch.empty(self.param.shape, dtype=dtype, device=device)
        pool = self._pool.scaled(*_moments(self.param), dtype, device)
        flat, done, start = out.view(-1), 0, self._start
        while done < flat.numel():
            count = min(_POOL - start, flat.numel() - done)
            flat[done:done + count].copy_(pool[start:start + count])
            done, start = done + count, 0
        return out


def _moments(param: ParamSpec) -> tuple[float, float]:
    """(mean, standard deviation)"""
    if param.role == "norm":
        return 1.0, 0.1
    if len(param.shape) < 2 or param.role == "bias":
        return 0.0, 0.1
    return 0.0, param.shape[-1] ** -0.5


class _Pool:
    """The numbers of one seed, and what has been made of them: a model has few distinct scales."""

    def __init__(self, seed: int) -> None:
        self._numbers = torch.randn(_POOL, generator=torch.Generator().manual_seed(seed))
        self._scaled: dict[tuple[float, float, torch.dtype, torch.device], Tensor] = {}

    def scaled(self, mean: float, std: float, dtype: torch.dtype, device: torch.device) -> Tensor:
        key = (mean, std, dtype, device)
        if key not in self._scaled:
            self._scaled[key] = (self._numbers * std + mean).to(device=device, dtype=dtype)
        return self._scaled[key]
