"""Chi-square tests of sampled tokens against the distribution that they should have."""

import numpy as np
import torch
from numpy.typing import NDArray

LEAST_EXPECTED = 5.0  # cells that are rarer are taken together


def p_value(counts: NDArray[np.int64], chances: NDArray[np.float64]) -> float:
    """That counts this far from `chances`, or further, come about by chance (Pearson)."""
    expected = chances.ravel() * counts.sum()
    common = expected >= LEAST_EXPECTED
    seen = np.append(counts.ravel()[common], counts.ravel()[~common].sum()).astype(float)
    wanted = np.append(expected[common], expected[~common].sum())
    if wanted[-1] < 1e-9:
        if seen[-1]:
            return 0.0
        seen, wanted = seen[:-1], wanted[:-1]
    square = float(((seen - wanted) ** 2 / wanted).sum())
    half = torch.tensor([(len(seen) - 1) / 2, square / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def least_p(tokens: NDArray[np.int64], joint: NDArray[np.float64]) -> float:
    """The least p-value of all marginals and all pairs of neighbours. tokens [N, n]; joint [V] * n."""
    num_positions, size = tokens.shape[1], joint.shape[0]
    found = []
    for width in (1, 2):
        for first in range(num_positions - width + 1):
            kept = range(first, first + width)
            chances = joint.sum(tuple(axis for axis in range(num_positions) if axis not in kept))
            cells = np.ravel_multi_index(tuple(tokens[:, place] for place in kept), (size,) * width)
            found.append(p_value(np.bincount(cells, minlength=size**width), chances))
    return min(found)


def chain(first: NDArray[np.float64], following: NDArray[np.float64], num: int) -> NDArray[np.float64]:
    """The joint distribution of `num` tokens of a Markov chain: first [V], following [V, V]."""
    joint = first
    for _ in range(num - 1):
        joint = joint[..., None] * following
    return joint
