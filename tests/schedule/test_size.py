"""Steps that lack memory: nothing is lost, requests beside are unharmed, steps are smaller for a while."""

import logging
import random

import numpy as np
import pytest

from ridgeline.schedule.plan import StepPlan
from ridgeline.schedule.request import Finish
from ridgeline.schedule.size import GOOD_STEPS, StepSize
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import Harness, expected


def sampled(seed: int, max_tokens: int = 12) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=max_tokens)


Answer = tuple[list[int], Finish]


def crowd(harness: Harness, num: int, longest: int = 40, seed: int = 0) -> list[Answer]:
    """So many requests, and what each must answer."""
    wanted = []
    dice = random.Random(seed)
    for number in range(num):
        prompt = [dice.randrange(1, 30) for _ in range(dice.randint(1, longest))]
        params = sampled(number)
        harness.add(str(number), prompt, params)
        wanted.append(expected(prompt, params, number, 128))
    return wanted


def assert_whole(harness: Harness, wanted: list[Answer]) -> None:
    for number, answer in enumerate(wanted):
        told = harness.told[str(number), 0]
        assert (told.tokens, told.last.finish) == answer, number


def test_the_limit_falls_below_the_step_and_comes_back_slowly() -> None:
    size = StepSize(64)
    size.lacked(40)
    assert size.tokens == 20
    size.lacked(64)  # the step that was in flight behind it
    assert size.tokens == 20
    for _ in range(GOOD_STEPS - 1):
        size.went_well()
    assert size.tokens == 20
    size.went_well()
    assert size.tokens == 22
    for _ in range(1000):
        size.went_well()
    assert size.tokens == size.most == 64 and size.stats()["num_short_steps"] == 2


@pytest.mark.parametrize(("policy", "depth"), [
    ("fcfs", 2), ("chunked:16", 3), ("slo", 1), ("priority", 2), ("static", 2), ("prefill", 3),
    ("throughput", 2)])
def test_a_machine_with_room_for_few_tokens_serves_all(policy: str, depth: int) -> None:
    """Whole steps raise above 7 tokens, prompts are longer: every answer is as on a large machine."""
    harness = Harness(num_pages=80, depth=depth, policy=policy, short=lambda plan: plan.num_tokens > 7)
    wanted = crowd(harness, 8)
    harness.run()
    assert_whole(harness, wanted)
    stats = harness.loop.stats()
    assert stats["num_short_steps"] > 1 and stats["step_token_limit"] <= 7 + 1


def _random(kind: str, seed: int, num: int) -> None:
    dice = random.Random(seed)

    def undo(plan: StepPlan) -> list[int]:
        return [row for row in range(plan.num_rows) if plan.num_tokens > 1 and dice.random() < 0.1]

    harness = Harness(
        kind, num_pages=40, depth=1 + seed % 3, num_host_pages=(0, 24)[seed % 2],
        speculate=(0, 3)[seed % 5 == 4], undo=undo,
        short=lambda plan: plan.num_tokens > 1 and dice.random() < 0.1)
    wanted = crowd(harness, num, seed=seed)
    harness.run()
    assert_whole(harness, wanted)
    assert harness.loop.stats()["num_undone"] > num // 2


@pytest.mark.parametrize(("kind", "seed"), [("paged", 3), ("window", 1), ("mixed", 2), ("paged", 4)])
def test_memory_that_lacks_at_random_loses_nothing(kind: str, seed: int) -> None:
    """Rows that lack memory alone and steps that do as a whole, in any order, with preemption, host memory
    and drafts beside."""
    _random(kind, seed, 8)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["paged", "window", "mixed"])
@pytest.mark.parametrize("seed", range(30))
def test_memory_that_lacks_at_random_for_long(kind: str, seed: int) -> None:
    _random(kind, seed, 40)


def test_choices_prompt_logprobs_and_aborts_go_through_it() -> None:
    """n > 1 waits for a prompt that is computed twice; scores come once; whoever leaves meanwhile is gone."""
    dice = random.Random(1)
    harness = Harness(num_pages=60, short=lambda plan: plan.num_tokens > 1 and dice.random() < 0.3)
    prompt = list(range(1, 24))
    harness.add("n", prompt, SamplingParams(seed=4, max_tokens=6, ignore_eos=True, n=3))
    scored = SamplingParams(seed=5, max_tokens=4, ignore_eos=True, prompt_logprobs=1, logprobs=1)
    harness.add("p", prompt, scored)
    harness.add("gone", prompt, sampled(6))
    for _ in range(3):
        harness.step()
    harness.loop.abort("gone")
    harness.run()
    told = harness.told["p", 0]
    assert [position for position, _ in told.prompt_logprobs] == list(range(1, 23))
    assert told.tokens == expected(prompt, scored, 5, 128)[0] and len(told.logprobs) == 4
    assert all(harness.finish_of("n", choice) is Finish.LENGTH for choice in range(3))
    assert harness.finish_of("gone") is Finish.ABORT


def test_what_finds_no_room_even_alone_fails_alone() -> None:
    """A single token that has none is given up; the others go on."""
    harness = Harness(undo=lambda plan: np.flatnonzero(plan.request == 1).tolist())
    wanted = crowd(harness, 3)
    harness.run()
    assert harness.finish_of("1") is Finish.ERROR
    for number in (0, 2):
        assert harness.told[str(number), 0].tokens == wanted[number][0]


def test_without_a_cache_a_step_is_never_cut_below_a_whole_request() -> None:
    dice = random.Random(3)
    harness = Harness(cache=False, max_step_tokens=256, num_pages=120,
                      undo=lambda plan: [0] if plan.num_tokens > 128 and dice.random() < 0.5 else [])
    wanted = crowd(harness, 10)
    harness.run()
    assert_whole(harness, wanted)


def test_it_is_said_once_and_recorded(caplog: pytest.LogCaptureFixture) -> None:
    def short(plan: StepPlan) -> bool:
        return plan.step < 3

    harness = Harness(short=short)
    wanted = crowd(harness, 6)
    with caplog.at_level(logging.WARNING):
        harness.run()
    assert_whole(harness, wanted)
    assert len([one for one in caplog.records if "lacked memory" in one.message]) == 1
    assert sum(step.num_failed for step in harness.trace.steps) == 0
