"""The noise that sampling adds: one Gumbel number for each (request seed, position, token id), from a
stateless hash.

Adding it to logits / temperature and taking the highest draws from their softmax (Gumbel-max). A token's
number does not depend on which tokens it is compared with, nor on the row, the batch or the path that
computes it. Integers are 32 bits wide and wrap, since those are what vector units multiply fast.

Legend: R rows, V vocabulary, N tokens of any shape.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STIR = 0x2C1B3C6D


def row_keys(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> Tensor:
    """What sets one (seed, position) apart from all others: int32 [2, R], an xor word and an odd
    multiplier."""
    mixed = _mix64(_mix64(seeds + _GOLDEN) + positions.astype(np.uint64) * _GOLDEN)
    words = np.stack([mixed >> np.uint64(32), mixed | np.uint64(1)]).astype(np.uint32)
    return torch.from_numpy(words.view(np.int32))


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> Tensor:
    """One number in (0, 1) for each (seed, position), of no relation to its row_keys: float64 [R]."""
    mixed = _mix64(_mix64(_mix64(seeds + _GOLDEN) + positions.astype(np.uint64) * _GOLDEN) ^ _GOLDEN)
    return torch.from_numpy(((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


def token_codes(vocab_size: int) -> Tensor:
    """A scattered 32-bit word for each token id, all different: int32 [V] (murmur3's finalizer)."""
    code = np.arange(1, vocab_size + 1, dtype=np.uint32)
    code = (code ^ (code >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    code = (code ^ (code >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return torch.from_numpy((code ^ (code >> np.uint32(16))).view(np.int32))


def bits(code: Tensor, xor: Tensor, multiplier: Tensor, out: Tensor | None = None,
         scratch: Tensor | None = None) -> Tensor:
    """Noise as int32, growing with the Gumbel number it stands for; all different within a row.

    code broadcasts against xor and multiplier; out and scratch, of the result's shape, spare an allocation.
    """
    out = torch.bitwise_xor(code, xor, out=out).mul_(multiplier)
    scratch = torch.bitwise_right_shift(out, 15, out=scratch).bitwise_and_(0x1FFFF)
    return out.bitwise_xor_(scratch).mul_(_STIR)


def gumbel_of(noise: Tensor) -> Tensor:
    """bits() as standard Gumbel numbers, float64: -log(-log(u)) with u in (0, 1) to 32 bits."""
    return noise.double().add_(2.0**31 + 0.5).mul_(2.0**-32).log_().neg_().log_().neg_()


def gumbel(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """The Gumbel numbers of token ids [N] where `seed` samples the token at `position`: float64 [N].

    The plain definition, for tests and for whoever must predict a draw.
    """
    seeds = np.array([seed % 2**64], np.uint64)
    xor, multiplier = row_keys(seeds, np.array([position], np.int64))
    return gumbel_of(bits(token_codes(int(token_ids.max()) + 1)[token_ids.cpu()], xor, multiplier))


def _mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
