"""Texts of very different length in one batch, through the loop, manager and runner: what each is given is
what the reference gives it alone."""

from pathlib import Path

import pytest
import torch

from ridgeline.nn.build import build_model
from ridgeline.spec.sampling import SamplingParams
from tests.invariance.driver import Job, Setup, Tiny
from tests.oracle.ours import Ours
from tests.oracle.reference import VOCAB, reference_logits, reference_model
from tests.oracle.test_families import CASES, TOLERANCE, text
from tests.oracle.test_latent import CASES as LATENT
from tests.oracle.test_shared import FIELDS as SHARED

MORE = {**CASES, **LATENT, "gemma 4": ("Gemma4ForCausalLM", SHARED)}


@pytest.mark.parametrize(
    "case", ["mixtral", "qwen2-moe", "gemma 2", "gemma 3", "gpt-oss", "deepseek-v3", "gemma 4"])
def test_a_batch_of_mixed_lengths_equals_the_reference(tmp_path: Path, case: str) -> None:
    """Prompts in chunks beside decodes: log-probabilities of every place that was sampled."""
    torch.set_num_threads(1)
    name, fields = MORE[case]
    model = reference_model(name, **fields)
    model.save_pretrained(tmp_path)
    ours = Ours(tmp_path)
    engine = Tiny(ours.spec)
    engine.model = build_model(ours.spec, ours.weights, torch.float32)
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, logprobs=VOCAB, seed=0)
    jobs = [Job(prompt=tuple(text(length)), params=params, at=at)
            for at, length in enumerate((77, 1, 24, 50))]
    run = engine.run(Setup(max_step_tokens=33, depth=2), jobs)
    for (index, _), said in run.texts.items():
        prompt = list(jobs[index].prompt)
        want = reference_logits(model, prompt + said.tokens).log_softmax(-1)[len(prompt) - 1: -1]
        for place, found in enumerate(said.logprobs):
            got = torch.from_numpy(found.logprobs)
            assert (got - want[place, torch.from_numpy(found.token_ids).long()]).abs().max() < TOLERANCE
