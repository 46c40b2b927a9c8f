"""Each family through the loop, manager and runner: what a text says when its beginning is found in the
cache, when it is forked, preempted, and drafted for, is what it says alone."""

from dataclasses import replace
from functools import cache

import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.engine.drafting import check_speculation
from ridgeline.models.families import FAMILIES, model_spec
from ridgeline.spec.sampling import SamplingParams
from tests.features import each_running, refused, runs
from tests.invariance.driver import Job, Setup, Tally, Tiny
from tests.oracle.cases import CASES
from tests.oracle.reference import reference_config

NOT_ON_A_GPU = "speculate by a draft model is not there yet on a GPU"
VOCAB = 8
# whatever token is said next, it has stood behind 4, 5 before, so that n-grams find drafts
PROMPT = (*(token for said in range(VOCAB) for token in (4, 5, said)), 4, 5)
SETUP = Setup(num_rows=2, policy="priority", depth=2, prefix_caching=True, max_step_tokens=11)


@cache
def tiny(family: str) -> Tiny:
    """Random weights in the shape of the family's case."""
    config = reference_config(family, **CASES[family][1] | {"vocab_size": VOCAB})
    return Tiny(model_spec(config.to_dict()))


def job(length: int, **changes: object) -> Job:
    """Of so many of the prompt's last tokens."""
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=8, ignore_eos=True)
    return Job(prompt=PROMPT[-length:], params=replace(params, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", each_running(FAMILIES, "prefix cache", "forks", "preemption"))
def test_found_forked_and_preempted(family: str) -> None:
    """A prompt that was computed before, twice, with seeds; an urgent one takes the place of either."""
    forked, urgent = job(26, n=2, temperature=0.9), replace(job(18), at=6, priority=-1)
    tally = Tally()
    run = tally.compare(tiny(family), SETUP, [forked, urgent], warm=[job(26, max_tokens=1)])
    tally.report(family)
    assert int(str(run.stats["num_cached_tokens"])) >= 16 and run.stats["num_preemptions"]


@pytest.mark.parametrize(("family", "how"), [
    pytest.param(family, how, id=f"{how}-{family}", marks=runs(family, feature))
    for how, feature in (("ngram", "ngram drafts"), ("draft", "draft model"))
    for family in FAMILIES])
def test_drafted_for(family: str, how: str) -> None:
    tally = Tally()
    run = tally.compare(tiny(family), replace(SETUP, speculate=how, depth=1), [job(26, temperature=0.9)])
    tally.report(family)
    assert run.stats["num_draft_tokens"]


@pytest.mark.parametrize("family", [
    pytest.param(family, id=family, marks=refused(family, NOT_ON_A_GPU, "drafts on a GPU"))
    for family in FAMILIES])
def test_no_drafts_on_a_gpu(family: str) -> None:
    """By another model, before anything loads, whatever the model; what is looked up runs there."""
    check_speculation(EngineConfig(model=family, speculate="ngram"), on_gpu=True)
    with pytest.raises(ConfigError, match=NOT_ON_A_GPU):
        check_speculation(EngineConfig(model=family, speculate="draft:any"), on_gpu=True)
