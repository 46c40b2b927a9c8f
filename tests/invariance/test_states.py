"""Invariance of models with recurrent states, pure and hybrid: a text is the same alone, batched and chunked,
from a snapshot, forked in the middle of a block, and preempted and resumed, with one step planned ahead or
none."""


import pytest
from hypothesis import strategies as st
from torch import Tensor

from ridgeline.blocks.step import Block, Step
from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tiny_states
from tests.invariance.driver import Job, Setup, Tally, Tiny
from tests.invariance.test_invariance import check, jobs

SNAPSHOTS = {"snapshot_stride": st.sampled_from([0, 8]), "snapshot_bytes": st.sampled_from([None, 40_000])}


@pytest.fixture(scope="module", params=["state", "hybrid", "delta"])
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return Tiny(tiny_states(request.param))


def test_batched_and_chunked(tiny: Tiny) -> None:
    setups = st.builds(Setup, max_step_tokens=st.sampled_from([7, 13, 512]), depth=st.integers(1, 2))
    check(tiny, "batched and chunked", setups, examples=2)


def test_from_snapshots(tiny: Tiny) -> None:
    """Each prompt's beginning was computed before: hits end at a snapshot, the rest is computed again."""
    def warm(work: list[Job]) -> list[Job]:
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=9)
        return [Job(prompt=job.prompt[:max(1, len(job.prompt) - 2)], params=params) for job in work]

    setups = st.builds(Setup, prefix_caching=st.just(True), depth=st.integers(1, 2),
                       max_step_tokens=st.sampled_from([11, 512]), **SNAPSHOTS)
    sums = check(tiny, "from snapshots", setups, warm=warm, examples=3)
    assert sums["num_cached_tokens"] > 100


def test_forked(tiny: Tiny) -> None:
    """Choices begin at their sibling's last snapshot and replay from it; without any they compute the
    prompt."""
    setups = st.builds(Setup, depth=st.integers(1, 2), prefix_caching=st.booleans(), **SNAPSHOTS)
    check(tiny, "forked", setups, one=jobs(n=3), examples=2)


def test_preempted(tiny: Tiny) -> None:
    """Urgent requests take the rows of others, and short prompts with long answers outgrow a small pool:
    whoever comes back goes on from a snapshot, or from nothing."""
    setups = st.builds(Setup, num_pages=st.integers(45, 50), num_rows=st.integers(2, 3),
                       prefix_caching=st.booleans(), max_step_tokens=st.sampled_from([16, 512]),
                       depth=st.integers(1, 2), policy=st.just("priority"), **SNAPSHOTS)
    work = jobs(most_prompt=20, least_output=10, priorities=3)
    sums = check(tiny, "preempted", setups, one=work, least_jobs=4, examples=2)
    assert sums["num_preemptions"] > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_swapped(tiny: Tiny, depth: int) -> None:
    """An urgent request takes a row: the state goes to host memory as it stands, in the middle of a block,
    and comes back."""
    greedy = SamplingParams(temperature=0.0, seed=0, max_tokens=14, ignore_eos=True)
    work = [Job(prompt=tuple(range(3, 10 + place)), params=greedy, priority=2 - place, at=place * 4)
            for place in range(3)]
    run = Tally().compare(tiny, Setup(num_rows=1, num_host_pages=100, depth=depth, policy="priority"), work)
    assert run.stats["num_swaps"] == 2 and run.stats["num_recomputed_tokens"] == 0


class OneRow:
    """A block that raises on more than one row."""

    def __init__(self, block: Block) -> None:
        self.bind, self.share_key, self.prepare = block.bind, block.share_key, block.prepare
        self._block = block

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        if len(step.starts) > (1 if step.runs is None else step.runs[0]):
            raise MemoryError("more than one row")
        return self._block(x_TH, step, shared)


def test_a_step_that_raises_can_be_run_again(tiny: Tiny) -> None:
    """The last block breaks every step of several rows, when the states of all others have moved: halved
    until it goes, the step says what it would have said, and drafts that fall leave no state behind."""
    broken = Tiny(tiny.spec)
    broken.model._modules[-1] = OneRow(broken.model._modules[-1])
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=6, ignore_eos=True)
    work = [Job(prompt=tuple(range(3, 3 + length)), params=params) for length in (9, 1, 14)]
    for setup in (Setup(), Setup(speculate="draft")):
        run = broken.run(setup, work)
        assert [run.texts[i, 0].tokens for i in range(3)] == [tiny.alone(job).tokens for job in work]
    assert run.stats["num_draft_tokens"] > run.stats["num_accepted_tokens"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_everything_at_once(tiny: Tiny) -> None:
    setups = st.builds(Setup, num_pages=st.integers(45, 120), num_rows=st.integers(1, 6),
                       depth=st.integers(1, 2), prefix_caching=st.booleans(),
                       max_step_tokens=st.integers(6, 200),
                       policy=st.sampled_from(["fcfs", "priority"]), **SNAPSHOTS)
    check(tiny, "everything", setups, one=jobs(n=2, priorities=3), examples=200)
