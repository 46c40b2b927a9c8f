"""--deterministic: every log-probability of a request is the same to the bit, alone, in any batch, in chunks
of any size, from the cache, preempted, swapped and speculated, for every kind of block."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tiny_capped, tiny_latent, tiny_mixture, tiny_shared, tiny_spec, tiny_states
from tests.invariance.driver import Job, Setup, Text, Tiny
from tests.invariance.test_adapters import with_adapters
from tests.invariance.test_invariance import BASES

SPECS: dict[str, ModelSpec] = {
    "paged": tiny_spec(intermediate_size=44), "window": tiny_spec(windows=(9, 5), qk_norm=True),
    "capped": tiny_capped(), "shared": tiny_shared(), "latent": tiny_latent(), "mixture": tiny_mixture(),
    "state": tiny_states("state"), "hybrid": tiny_states("hybrid"), "delta": tiny_states("delta")}
TOP = 5
WORDS = (5, 11, 37)  # of all answers, so that n-grams find drafts; the model says their order
# two rows for all, of which the urgent take one after another
ALL = Setup(num_rows=2, max_step_tokens=11, depth=2, policy="priority", prefix_caching=True,
            snapshot_stride=8, speculate="ngram", check=False)


@pytest.fixture(scope="module", params=list(SPECS))
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return Tiny(SPECS[request.param], apart=True)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Prompts share beginnings."""
    prompt = draw(st.sampled_from(BASES))[:draw(st.integers(9, 40))]
    prompt += tuple(draw(st.lists(st.integers(3, 96), min_size=1, max_size=4)))
    return Job(prompt=prompt, params=SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.8])), seed=draw(st.integers(0, 2)), ignore_eos=True,
        max_tokens=draw(st.integers(16, 20)), logprobs=TOP, logit_bias=dict.fromkeys(WORDS, 90.0)))


def bits(text: Text) -> object:
    """Its tokens, and the log-probabilities as they are held."""
    return text.tokens, [(one.token_ids.tolist(), one.logprobs.tobytes()) for one in text.logprobs]


def check(tiny: Tiny, setups: st.SearchStrategy[Setup], examples: int, most: int = 3,
          most_adapters: int = 0) -> Counter[str]:
    """Random work under random setups; sums of the runs' numbers."""
    sums = Counter[str]()

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))
    @given(setup=setups, work=st.lists(jobs(), min_size=3, max_size=most))
    def compare(setup: Setup, work: list[Job]) -> None:
        work = [replace(job, at=3 * i, priority=-i, adapter=(i + 1) % (most_adapters + 1))
                for i, job in enumerate(work)]  # the last goes first
        warm = [replace(job, at=0, params=SamplingParams(max_tokens=1)) for job in work[::2]]
        run = tiny.run(setup, work, warm=warm)
        for (index, choice), text in run.texts.items():
            assert bits(text) == bits(tiny.alone(work[index].alone(choice))), (setup, work[index])
        sums.update({name: value for name, value in run.stats.items() if isinstance(value, int)})

    compare()
    return sums


def test_in_company(tiny: Tiny) -> None:
    """In chunks, behind a prefix from the cache, preempted, and with drafts, all in one run."""
    sums = check(tiny, st.just(ALL), 1)
    assert sums["num_cached_tokens"] and sums["num_draft_tokens"] and sums["num_preemptions"]


def test_adapters_in_company(tmp_path: Path) -> None:
    """Of three adapters, which share steps with each other and with the base."""
    sums = check(with_adapters(tiny_spec(), tmp_path, apart=True), st.just(ALL), 1, most_adapters=3)
    assert sums["num_preemptions"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_in_any_company(tiny: Tiny) -> None:
    setups = st.builds(
        Setup, num_rows=st.integers(2, 6), max_step_tokens=st.sampled_from([7, 19, 512]),
        depth=st.integers(1, 2), prefix_caching=st.booleans(), snapshot_stride=st.sampled_from([0, 8]),
        policy=st.just("priority"), speculate=st.sampled_from(["", "ngram"]),
        num_host_pages=st.sampled_from([0, 100]))
    check(tiny, setups, 40, most=7)
