"""How often tokens are drawn, against exact probabilities: chi-square at fixed seeds on a vocabulary of
twelve."""

import numpy as np
import pytest
import torch

from ridgeline.runner.sampler import Sampler
from ridgeline.schedule.plan import RowStart
from ridgeline.spec.sampling import SamplingParams
from tests.runner import slow_sampler

LOGITS = [2.0, -1.0, 0.5, 0.5, 1.7, -3.0, 0.0, 1.1, -0.4, 2.2, -2.0, 0.9]
ROWS, STEPS = 128, 48


def limit(freedom: int) -> float:
    """The chi-square value that chance exceeds once in 10,000 (Wilson and Hilferty 1931)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3


def draws(params: SamplingParams, same_seed: bool) -> np.ndarray:
    """Tokens [STEPS, ROWS]; rows differ by seed, or by position too far apart to meet."""
    sampler = Sampler(ROWS, len(LOGITS), torch.device("cpu"))
    for row in range(ROWS):
        sampler.start(RowStart(request=row, row=row, params=params, seed=11 if same_seed else row,
                               prompt=np.zeros(1, np.int32), output=np.zeros(0, np.int32), stop_token_ids=()))
    logits, rows = torch.tensor([LOGITS] * ROWS), torch.arange(ROWS)
    shift = rows * STEPS if same_seed else rows * 0
    return np.stack([sampler.sample(logits, rows, shift + step).tokens_S.numpy() for step in range(STEPS)])


def agree(counts: np.ndarray, chances: np.ndarray) -> bool:
    """Whether counts may come from these probabilities; cells too rare for the test count as one."""
    assert not counts[chances == 0].any(), "a token that is not admitted was drawn"
    expected = chances * counts.sum()
    rare = expected < 5
    counts, expected = (np.append(cells[~rare], cells[rare].sum()) for cells in (counts, expected))
    some = expected > 0
    return bool(((counts - expected)[some] ** 2 / expected[some]).sum() < limit(some.sum() - 1))


@pytest.mark.parametrize("params", [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=2.5),
    SamplingParams(temperature=1.0, top_k=5),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=1.3, top_k=8, top_p=0.7, min_p=0.1),
    SamplingParams(temperature=1.3, top_p=0.9, min_p=0.1),
], ids=["plain", "cold", "hot", "top_k", "top_p", "min_p", "all", "nucleus"])
@pytest.mark.parametrize("same_seed", [False, True])
def test_frequencies_are_the_probabilities(params: SamplingParams, same_seed: bool) -> None:
    """Over many seeds, and over the positions of one seed; two draws in a row are independent."""
    tokens = draws(params, same_seed)
    kept = slow_sampler.admitted(LOGITS, params)
    chances = np.array([kept.get(token, 0.0) for token in range(len(LOGITS))])
    assert agree(np.bincount(tokens.ravel(), minlength=len(chances)), chances)
    pairs = np.bincount((tokens[:-1] * len(chances) + tokens[1:]).ravel(), minlength=len(chances) ** 2)
    assert agree(pairs, np.outer(chances, chances).ravel())


def test_seeds_give_different_texts() -> None:
    """No two of 128 seeds agree over 48 tokens (C-11)."""
    assert len(np.unique(draws(SamplingParams(temperature=1.0), same_seed=False), axis=1)[0]) == ROWS
