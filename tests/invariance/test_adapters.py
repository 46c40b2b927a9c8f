"""Requests of several adapters and of none say together what each says alone: cached, forked, in chunks,
preempted, swapped, speculated, recomputed at every step. Vectors of prompts too."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.adapters.slots import AdapterSlots
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams
from tests.adapters.made import ALL, adapter_folder, loaded
from tests.helpers import tiny_spec, tokens_of
from tests.invariance.driver import Job, Setup, Tally, Tiny

SETUPS = [
    Setup(depth=2), Setup(max_step_tokens=9, depth=2, prefix_caching=True),
    Setup(cache=False, max_step_tokens=320),
    Setup(num_pages=22, num_rows=3, max_step_tokens=9, policy="priority", prefix_caching=True),
    Setup(num_pages=22, num_rows=3, max_step_tokens=9, policy="priority", num_host_pages=60),
    Setup(speculate="ngram", depth=2, prefix_caching=True), Setup(speculate="draft", prefix_caching=True),
]  # fmt: skip
PROMPT = tuple(tokens_of(33, seed=3).tolist())


def jobs() -> list[Job]:
    """One prompt for all, so that only the salt keeps them apart."""
    talk = SamplingParams(temperature=0.8, seed=5, max_tokens=8, ignore_eos=True)
    found = [Job(prompt=PROMPT[: 33 - adapter], params=talk, at=at, adapter=adapter, priority=-at)
             for at, adapter in enumerate((1, 0, 2, 3))]
    return [*found, replace(found[2], params=replace(talk, n=2)), replace(found[0], params=SamplingParams(
        temperature=0.0, max_tokens=1, pool="mean", seed=1))]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return with_adapters(tiny_spec(), tmp_path_factory.mktemp("adapters"))


def with_adapters(spec: ModelSpec, folder: Path, *, apart: bool = False) -> Tiny:
    slots = AdapterSlots(3)
    for slot, targets in ((1, ALL), (2, ("q_proj", "v_proj")), (3, ("gate_proj", "down_proj"))):
        made = adapter_folder(
            folder / str(slot), spec, seed=slot, rank=slot + 2, targets=targets, strength=3.0)
        slots.put(slot, loaded(made, spec))
    return Tiny(spec, adapters=slots, apart=apart)


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_beside_others_as_alone(tiny: Tiny, setup: Setup) -> None:
    tally, work = Tally(), jobs()
    warm = [replace(job, params=replace(job.params, n=1, pool=None, max_tokens=3)) for job in work[:3]]
    run = tally.compare(tiny, setup, work, warm=warm if setup.prefix_caching else [])
    tally.report(str(setup))
    assert setup.policy == "fcfs" or run.stats["num_preemptions"]
    assert not setup.prefix_caching or run.stats["num_cached_tokens"]
    want, got = tiny.alone(work[-1]).pooled, run.texts[len(work) - 1, 0].pooled
    assert want is not None and got is not None and np.abs(want - got).max() < 1e-4


def test_adapters_differ(tiny: Tiny) -> None:
    """Else nothing above says anything."""
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    texts = {tuple(tiny.alone(Job(prompt=PROMPT, params=greedy, adapter=slot)).tokens) for slot in range(4)}
    assert len(texts) == 4
