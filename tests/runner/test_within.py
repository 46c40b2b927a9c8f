"""Tokens under grammars, sampled without masks where none is needed, equal those of the masked logits."""

from dataclasses import replace

import pytest
import torch

from ridgeline.frontend import structure
from ridgeline.runner.sampler import Sampler
from ridgeline.runner.within import sample_within
from ridgeline.spec.sampling import SamplingParams
from tests.runner.test_grammar import VOCAB, grammars, plan, start

PATTERNS = ("(a|b)*", "(ab|ba)12", "[12]{1,9}", "éa12|b(aa|b){2}", "a{1,40}")
ASKED = (SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_p=0.7),
         SamplingParams(top_k=3), SamplingParams(temperature=2.0, min_p=0.1),
         SamplingParams(temperature=0.0, repetition_penalty=3.0), SamplingParams(frequency_penalty=2.0),
         SamplingParams(temperature=0.0, logit_bias={7: 100.0, 1: -100.0}))


@pytest.mark.parametrize("filtered", [False, True])
def test_tokens_are_those_of_masked_logits(filtered: bool) -> None:
    """A row of each kind under each grammar and free, some of them broken, over steps with random logits."""
    asked = [params for params in ASKED if not filtered or params.top_p < 1 or params.top_k or params.min_p]
    patterns = PATTERNS if filtered else (None, *PATTERNS)
    kinds = [(pattern, params) for params in asked for pattern in patterns]
    numbers = torch.arange(len(kinds))
    followed = grammars()
    lazy, twin, free = (Sampler(len(kinds), VOCAB, torch.device("cpu")) for _ in range(3))
    for row, (pattern, params) in enumerate(kinds):
        begun = start(pattern and structure.regex(pattern), [], row)
        begun = replace(begun, params=replace(params, grammar=begun.params.grammar))
        followed.start(begun)
        for sampler in (lazy, twin, free):
            sampler.start(begun)
    random, refused = torch.Generator().manual_seed(0), 0
    for step in range(8):
        logits = 3 * torch.randn(len(kinds), VOCAB, generator=random)
        logits[step::9, step] = torch.nan
        before, positions = logits.nan_to_num(), numbers * 0 + step + 1
        places = list(range(len(kinds)))
        masks = followed.masks(plan([[] for _ in kinds]))
        masked = masks.apply(logits, places, places, [0 for _ in kinds], keep=True) if masks else logits
        expected = twin.sample(masked, numbers, positions)
        out = sample_within(lazy, followed, logits, numbers, positions, keep=True)
        assert logits.nan_to_num().equal(before), "the logits were to stay as they are"
        assert out.failed_S.equal(expected.failed_S) and out.tokens_S.equal(expected.tokens_S)
        refused += int((out.tokens_S != free.sample(logits, numbers, positions).tokens_S).sum())
        for row, token in enumerate(out.tokens_S.tolist()):
            if not expected.failed_S[row]:
                followed.accept(row, [token])
    assert refused > len(kinds)
