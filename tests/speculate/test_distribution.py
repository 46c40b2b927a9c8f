"""Verification gives the target's distribution: 200,000 samples of 4 tokens against the exact one, by the
very functions that rows are sampled with; two mutants fail the same test."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.runner import noise
from ridgeline.runner.draw import distribution, keep_or_replace
from ridgeline.runner.sampler import Sampler
from ridgeline.runner.speculate.speculator import Proposal
from ridgeline.runner.speculate.verify import Span, verify
from ridgeline.schedule.plan import RowStart
from ridgeline.spec.sampling import SamplingParams
from tests.speculate.chance import chain, least_p

VOCAB, LENGTH, DRAFTS, SAMPLES = 12, 4, 3, 200_000
CODES = noise.token_codes(VOCAB)
Rule = Callable[[Tensor, Tensor, Tensor, "Keys"], Tensor]


class Keys:
    """The noise of N texts at one position each; `stream` sets independent ones apart."""

    def __init__(self, seeds: np.ndarray, positions: np.ndarray) -> None:
        self._seeds, self._positions = seeds, positions

    def gumbel(self, stream: int = 0) -> Tensor:
        seeds = self._seeds + np.uint64(stream << 40)
        xor, multiplier = noise.row_keys(seeds, self._positions).unsqueeze(2).unbind(0)
        return noise.gumbel_of(noise.bits(CODES, xor, multiplier))

    def uniform(self) -> Tensor:
        return noise.uniform(self._seeds, self._positions)


def race(q: Tensor, keys: Keys, stream: int = 0) -> Tensor:
    return (q.log() + keys.gumbel(stream)).argmax(1)


def coupled(q: Tensor, p: Tensor, drafts: Tensor, keys: Keys) -> Tensor:
    return race(q, keys)


def kept(q: Tensor, p: Tensor, drafts: Tensor, keys: Keys) -> Tensor:
    return keep_or_replace(q, p, drafts, keys.uniform(), keys.gumbel())


def always_accept(q: Tensor, p: Tensor, drafts: Tensor, keys: Keys) -> Tensor:
    return drafts


def resample_from_q(q: Tensor, p: Tensor, drafts: Tensor, keys: Keys) -> Tensor:
    """Keeps rightly, and draws from q where it should draw from what q has more than p."""
    chance = q.gather(1, drafts[:, None])[:, 0] / p.gather(1, drafts[:, None])[:, 0]
    return torch.where(keys.uniform() < chance, drafts, race(q, keys))


def table(seed: int) -> Tensor:
    """The next token's distribution after each token, [VOCAB, VOCAB]: a model's, after top_p."""
    logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))
    every = torch.ones(VOCAB, dtype=torch.float64)
    return distribution(logits, every, (every * VOCAB).long(), every * 0.98, every * -torch.inf)


def texts(rule: Rule, drafter: str, seed: int, num: int = SAMPLES) -> np.ndarray:
    """[num, LENGTH] tokens, each row verified pass by pass from token 0 on."""
    q, p = table(1), (table(1) + table(2)) / 2
    looked_up = (5 * torch.arange(VOCAB) + 1) % VOCAB
    seeds = np.arange(num, dtype=np.uint64) + np.uint64(seed * num)
    tokens = torch.zeros(num, LENGTH + DRAFTS + 2, dtype=torch.long)
    size = torch.ones(num, dtype=torch.long)
    while (rows := (size <= LENGTH).nonzero().squeeze(1)).numel():
        for depth in range(DRAFTS + 1):
            last, at = tokens[rows, size[rows] - 1], size[rows]
            keys = Keys(seeds[rows.numpy()], at.numpy())
            if depth == DRAFTS:
                draft, token = last, race(q[last], keys)
            elif drafter == "draft":
                draft = race(p[last], keys, stream=1)
                token = rule(q[last], p[last], draft, keys)
            else:
                draft = looked_up[last]
                token = rule(q[last], torch.nn.functional.one_hot(draft, VOCAB).double(), draft, keys)
            tokens[rows, at] = token
            size[rows] += 1
            rows = rows[token == draft]
    return tokens[:, 1: LENGTH + 1].numpy()


def joint() -> np.ndarray:
    q = table(1).numpy()
    return chain(q[0], q, LENGTH)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("drafter", "rule"), [("draft", kept), ("ngram", coupled)])
def test_the_targets_distribution(drafter: str, rule: Rule, seed: int) -> None:
    assert least_p(texts(rule, drafter, seed), joint()) > 0.001


@pytest.mark.parametrize("drafter", ["draft", "ngram"])
@pytest.mark.parametrize("mutant", [always_accept, resample_from_q])
def test_mutants_fail(drafter: str, mutant: Rule) -> None:
    assert least_p(texts(mutant, drafter, seed=1, num=50_000), joint()) < 1e-9


@pytest.mark.parametrize("seeded", [True, False])
def test_tokens_a_pass(seeded: bool) -> None:
    """A draft of acceptance a gives (1 - a^(g + 1)) / (1 - a) tokens a pass, by either rule."""
    num, acceptance = 15_000, 0.7
    sampler = Sampler(num, VOCAB, torch.device("cpu"))
    chances = torch.full((VOCAB,), (1 - acceptance) / (VOCAB - 1), dtype=torch.float64)
    chances[5] = acceptance
    logits = chances.log().float().expand(num * (DRAFTS + 1), VOCAB)
    p_GV = None if seeded else torch.nn.functional.one_hot(torch.full((DRAFTS,), 5), VOCAB).double()
    proposal, spans = Proposal(tokens=[5] * DRAFTS, p_GV=p_GV), []
    for row in range(num):
        start = RowStart(request=row, row=row, params=SamplingParams(seed=row if seeded else None), seed=row,
                         prompt=np.array([1], np.int32), output=np.array([], np.int32), stop_token_ids=())
        sampler.start(start)
        spans.append(Span(start=start, at=row * (DRAFTS + 1), position=1, proposal=proposal))
    taken, failed = verify(sampler, logits, spans)
    assert not any(failed)
    expected = (1 - acceptance ** (DRAFTS + 1)) / (1 - acceptance)
    assert sum(map(len, taken)) / num == pytest.approx(expected, rel=0.01)
