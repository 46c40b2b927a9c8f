"""Invariance, gated in float32: a text is the same alone, batched, chunked, cached, forked, preempted and
resumed, without a cache, and with one step planned ahead; greedy and seeded; dense and with windows (other
blocks: test_families)."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tokens_of
from tests.invariance.driver import KINDS, MODELS, Job, Run, Setup, Tally, Tiny

BASES = tuple(tuple(tokens_of(60, seed=seed).tolist()) for seed in range(2))


@pytest.fixture(scope="module", params=list(MODELS))
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return Tiny(MODELS[request.param])


@st.composite
def jobs(draw: st.DrawFn, n: int = 1, most_prompt: int = 45, least_output: int = 1,
         priorities: int = 1) -> Job:
    """Prompts share beginnings, so that whole and part blocks are found in the cache."""
    prompt = draw(st.sampled_from(BASES))[:draw(st.integers(0, most_prompt))]
    prompt += tuple(draw(st.lists(st.integers(3, 96), min_size=1, max_size=5)))
    how = draw(st.sampled_from([
        {"temperature": 0.0}, {"temperature": 0.0}, {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 0.8}, {"temperature": 1.0, "top_k": 8}, {"temperature": 1.2, "top_p": 0.8},
        {"temperature": 0.7, "min_p": 0.05, "presence_penalty": 0.5}]))
    priority = draw(st.integers(0, priorities - 1)) if priorities > 1 else 0
    return Job(prompt=prompt, at=draw(st.integers(0, 10)), priority=priority, params=SamplingParams(
        n=n, seed=draw(st.integers(0, 2)), max_tokens=least_output + draw(st.integers(0, 15)),
        ignore_eos=draw(st.booleans()), min_tokens=draw(st.sampled_from([0, 4])), **how))


def check(tiny: Tiny, what: str, setups: st.SearchStrategy[Setup], *,
          one: st.SearchStrategy[Job] | None = None,
          warm: Callable[[list[Job]], list[Job]] = lambda work: [], least_jobs: int = 2,
          examples: int = 4) -> Counter[str]:
    """Compare random work under random setups with each request alone; sums of the runs' numbers."""
    tally, sums = Tally(), Counter[str]()
    one = jobs() if one is None else one

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))
    @given(setup=setups, work=st.lists(one, min_size=least_jobs, max_size=6))
    def compare(setup: Setup, work: list[Job]) -> None:
        run: Run = tally.compare(tiny, setup, work, warm=warm(work))
        sums.update({name: value for name, value in run.stats.items() if isinstance(value, int)})

    compare()
    tally.report(what)
    return sums


def test_batched(tiny: Tiny) -> None:
    check(tiny, "batched", st.just(Setup()))


def test_chunked(tiny: Tiny) -> None:
    check(tiny, "chunked", st.builds(Setup, max_step_tokens=st.integers(6, 17)))


def test_pipelined(tiny: Tiny) -> None:
    check(tiny, "pipelined", st.just(Setup(depth=2)))


def test_cached(tiny: Tiny) -> None:
    """Each prompt's beginning was computed before by another request: whole blocks and parts of blocks are
    hit."""
    def warm(work: list[Job]) -> list[Job]:
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=3)
        return [Job(prompt=job.prompt[:max(1, len(job.prompt) - 2)], params=params) for job in work]

    sums = check(tiny, "cached", st.just(Setup(prefix_caching=True)), warm=warm)
    assert sums["num_cached_tokens"] > 0


def test_forked(tiny: Tiny) -> None:
    """Each of n choices is what a request with its seed says alone."""
    check(tiny, "forked", st.builds(Setup, depth=st.integers(1, 2), prefix_caching=st.booleans()),
          one=jobs(n=3))


def test_preempted(tiny: Tiny) -> None:
    """Short prompts with long answers outgrow a small pool: rows are preempted and resumed."""
    setups = st.builds(Setup, num_pages=st.integers(24, 30), depth=st.integers(1, 2),
                       prefix_caching=st.booleans(), max_step_tokens=st.sampled_from([16, 512]))
    sums = check(tiny, "preempted", setups, one=jobs(most_prompt=12, least_output=20), least_jobs=5)
    assert sums["num_preemptions"] > 0


def test_swapped(tiny: Tiny) -> None:
    """The same, to host memory and back: nothing is computed again."""
    setups = st.builds(Setup, num_pages=st.integers(24, 30), depth=st.integers(1, 2),
                       prefix_caching=st.booleans(), num_host_pages=st.just(60))
    sums = check(tiny, "swapped", setups, one=jobs(most_prompt=12, least_output=20), least_jobs=5,
                 examples=2)
    assert sums["num_swaps"] > 0 and sums["num_recomputed_tokens"] == 0


def test_without_a_cache(tiny: Tiny) -> None:
    """The naive path: every step computes everything again."""
    check(tiny, "naive", st.just(Setup(cache=False)))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [*MODELS, *KINDS])
def test_everything_at_once(name: str) -> None:
    setups = st.builds(Setup, num_pages=st.integers(40, 120), depth=st.integers(1, 2),
                       num_rows=st.integers(1, 6), prefix_caching=st.booleans(),
                       max_step_tokens=st.integers(6, 200))
    check(Tiny((MODELS | KINDS)[name]), "everything", setups, one=jobs(n=2), examples=300)
