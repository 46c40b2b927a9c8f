"""Texts of very different length in one batch, through the loop, manager and runner: what each is given is
what the reference gives it alone."""

from collections.abc import Callable

import pytest
import torch

from ridgeline.models.families import FAMILIES
from ridgeline.nn.build import build_model
from ridgeline.spec.sampling import SamplingParams
from tests.features import each_running
from tests.invariance.driver import Job, Setup, Tiny
from tests.oracle.cases import tolerance
from tests.oracle.oracles import Oracle, text
from tests.oracle.reference import VOCAB, reference_logits


@pytest.mark.parametrize("family", each_running(FAMILIES, "in a batch"))
def test_a_batch_of_mixed_lengths_equals_the_reference(oracle: Callable[[str], Oracle], family: str) -> None:
    """Prompts in chunks beside decodes: log-probabilities of every place that was sampled."""
    one = oracle(family)
    engine = Tiny(one.ours.spec)
    engine.model = build_model(one.ours.spec, one.ours.weights, torch.float32)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=VOCAB, seed=0)
    jobs = [Job(prompt=tuple(text(length)), params=params, at=at)
            for at, length in enumerate((51, 1, 24, 33))]
    run = engine.run(Setup(max_step_tokens=27, depth=2, check=False), jobs)
    for (index, _), said in run.texts.items():
        prompt = list(jobs[index].prompt)
        want = reference_logits(one.model, prompt + said.tokens).log_softmax(-1)[len(prompt) - 1: -1]
        for place, found in enumerate(said.logprobs):
            got = torch.from_numpy(found.logprobs)
            gap = (got - want[place, torch.from_numpy(found.token_ids).long()]).abs().max()
            assert gap < tolerance(family), (index, place)
