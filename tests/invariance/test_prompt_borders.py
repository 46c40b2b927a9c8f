"""Protects prefix reuse where rotary angles depend on the prompt's length: only equal keys are shared."""

from dataclasses import replace

import pytest

from ridgeline.blocks.norm_rope.spec import RopeSpec, prompt_borders
from ridgeline.runner.runner import LocalExecutor
from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tiny_rope, tiny_spec, tokens_of
from tests.invariance.driver import Job, Setup, Tiny

LONG = tuple(float(2**i) for i in range(1, 5))
ROPES = {
    "longrope": RopeSpec(kind="longrope", theta=10_000.0, rotary_dim=8, max_position=160, factor=5.0,
                         original_max_position=32, short_factor=(1.0,) * 4, long_factor=LONG),
    "dynamic": replace(tiny_rope(kind="dynamic", max_position=32), factor=4.0),
}
CAPACITY_LEN = 160


class Scaled(Tiny):
    """The tiny model with another rotary embedding. borders: whether the scheduler is told of them."""

    def __init__(self, rope: RopeSpec, *, borders: bool = True) -> None:
        super().__init__(tiny_spec(rope=rope))
        self.borders = borders

    def _executor(self, setup: Setup) -> LocalExecutor:
        executor = super()._executor(setup)
        found = prompt_borders(self.spec, CAPACITY_LEN) if self.borders else ()
        executor._capacity = replace(executor.capacity(), prompt_borders=found)
        return executor


def _jobs() -> list[Job]:
    """Prompts with a common prefix, on both sides of the border at 32 tokens and right at it."""
    text = tuple(tokens_of(60).tolist())
    params = SamplingParams(temperature=0.0, max_tokens=12, seed=0, ignore_eos=True)
    return [Job(prompt=text[:length], params=params, at=30 * i)
            for i, length in enumerate((20, 50, 32, 33, 60, 28, 50))]


@pytest.mark.parametrize("kind", ROPES)
def test_a_hit_is_a_miss(kind: str) -> None:
    tiny, jobs = Scaled(ROPES[kind]), _jobs()
    run = tiny.run(Setup(prefix_caching=True), jobs)
    for i, job in enumerate(jobs):
        assert run.texts[i, 0].tokens == tiny.alone(job).tokens
    assert int(str(run.stats["num_cached_tokens"])) > 60, "prompts on one side must still share"


@pytest.mark.parametrize("kind", ROPES)
def test_the_test_can_fail(kind: str) -> None:
    """Without borders the same jobs do read keys of another rotation."""
    tiny, jobs = Scaled(ROPES[kind], borders=False), _jobs()
    run = tiny.run(Setup(prefix_caching=True), jobs)
    assert any(run.texts[i, 0].tokens != tiny.alone(job).tokens for i, job in enumerate(jobs))


def test_most_models_have_no_border() -> None:
    assert prompt_borders(tiny_spec(), 100) == ()
    assert prompt_borders(tiny_spec(rope=ROPES["longrope"]), 100) == (32,)
    assert prompt_borders(tiny_spec(rope=ROPES["dynamic"]), 35) == (32, 33, 34)
