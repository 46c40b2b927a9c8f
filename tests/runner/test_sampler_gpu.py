"""On a CUDA device the sampler draws the tokens that it draws on a CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ridgeline.runner.logprobs import top_logprobs
from ridgeline.runner.sampler import Sampler
from ridgeline.schedule.plan import RowStart
from ridgeline.spec.sampling import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

BASE = SamplingParams(temperature=0.9)
MIX = (SamplingParams(temperature=0.0), BASE, replace(BASE, top_k=40), replace(BASE, top_p=0.9),
       replace(BASE, min_p=0.05), replace(BASE, top_k=7, top_p=0.5, min_p=0.01),
       replace(BASE, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2, top_p=0.95),
       replace(BASE, min_tokens=9, logit_bias={5: 30.0, 6: -100.0}), replace(BASE, top_k=3000))


@pytest.mark.parametrize("vocab_size", [12, 5003, 49152])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_same_tokens_as_on_the_cpu(vocab_size: int, spread: float) -> None:
    """The noise is integer arithmetic and the scores are float64: a device's own functions do not show."""
    devices = (torch.device("cpu"), torch.device("cuda"))
    samplers = [Sampler(len(MIX) * 3, vocab_size, device) for device in devices]
    for row in range(len(MIX) * 3):
        for sampler in samplers:
            sampler.start(RowStart(
                request=row, row=row, params=MIX[row % len(MIX)], seed=row,
                prompt=np.arange(6, dtype=np.int32), output=np.array([5], np.int32), stop_token_ids=(0, 1)))
    rows = torch.randperm(len(MIX) * 3, generator=torch.Generator().manual_seed(0))
    for step in range(12):
        logits = torch.randn(len(rows), vocab_size, generator=torch.Generator().manual_seed(step)) * spread
        logits[4, 3] = torch.nan
        found = [sampler.sample(logits.to(device), rows, torch.full_like(rows, 7 + step))
                 for sampler, device in zip(samplers, devices)]
        assert found[1].failed_S.tolist() == found[0].failed_S.tolist()
        assert found[1].tokens_S.tolist() == found[0].tokens_S.tolist()


def test_same_logprobs_as_on_the_cpu() -> None:
    """Ids, ranks and values, ties included."""
    logits = (torch.randn(9, 5003, generator=torch.Generator().manual_seed(0)) * 8).round() / 2
    here, there = (top_logprobs(logits.to(device), torch.arange(9, device=device), 20)
                   for device in ("cpu", "cuda"))
    assert torch.equal(here[0], there[0].cpu()) and torch.equal(here[2], there[2].cpu())
    torch.testing.assert_close(here[1], there[1].cpu(), atol=1e-6, rtol=0)
