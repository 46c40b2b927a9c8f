"""Prompts as vectors: what the reference's last hidden states pool to, however the prompt was cut, cached,
preempted or accompanied."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from ridgeline.nn.build import build_model
from ridgeline.spec.sampling import SamplingParams
from tests.invariance.driver import Job, Setup, Tiny
from tests.oracle.cases import TOLERANCE
from tests.oracle.oracles import Oracle, text

LENGTHS = (51, 1, 24, 33, 24)
SETUPS = [
    Setup(depth=2), Setup(max_step_tokens=9, depth=2), Setup(prefix_caching=True, max_step_tokens=40),
    Setup(num_pages=16, num_rows=4, max_step_tokens=9, policy="priority"),
    Setup(num_pages=16, num_rows=4, max_step_tokens=9, policy="priority", num_host_pages=60),
    Setup(cache=False, max_step_tokens=160), Setup(speculate="ngram"),
]  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_vectors_equal_the_references(oracle: Callable[[str], Oracle], family: str) -> None:
    one = oracle(family)
    tiny = Tiny(one.ours.spec)
    tiny.model = build_model(one.ours.spec, one.ours.weights, torch.float32)
    with torch.no_grad():
        states = [one.model.model(torch.tensor([text(n)])).last_hidden_state[0].numpy() for n in LENGTHS]
    pools = ["mean", "last", "mean", "last", "last"]
    jobs = [Job(prompt=tuple(text(n)), params=SamplingParams(temperature=0.0, max_tokens=1, pool=pool), at=at,
                priority=-at)
            for at, (n, pool) in enumerate(zip(LENGTHS, pools, strict=True))]
    talk = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    beside = Job(prompt=tuple(text(20)), params=talk, priority=-9)
    wants = [state.mean(0) if pool == "mean" else state[-1]
             for state, pool in zip(states, pools, strict=True)]
    for setup in SETUPS:
        if setup.policy == "priority" and family == "gemma2":  # its windows have pages of their own
            setup = replace(setup, num_pages=30)
        run = tiny.run(setup, [*jobs, beside], warm=[jobs[2]])
        assert setup.policy == "fcfs" or run.stats["num_preemptions"]
        for index, want in enumerate(wants):
            got = run.texts[index, 0].pooled
            assert got is not None and np.abs(got - want).max() < TOLERANCE, (setup, index)
        assert run.texts[len(jobs), 0].pooled is None
