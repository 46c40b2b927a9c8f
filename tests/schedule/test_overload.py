"""Who certainly misses a deadline: never somebody who would have made it, and what becomes of the others."""

import random

import pytest

from ridgeline.base.stats import ttft_s
from ridgeline.schedule.overload import Mode, Overload
from ridgeline.schedule.policies.policy import LOOK
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.request import Finish
from ridgeline.schedule.speculate import Shape
from ridgeline.schedule.targets import Targets
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import NEEDS, Harness

STEP_TOKENS = 16


def price(step: Shape) -> float:
    """A machine whose steps of the fake executor (1 s each) never go below it."""
    return float(step.count.sum()) / STEP_TOKENS


def overload(mode: str, ttft_s: float, passes: int | None = 0, *, tpot_s: float | None = None,
             by_tenant: bool = False) -> Overload:
    return Overload(mode=Mode(mode), targets=Targets(ttft_s=ttft_s, tpot_s=tpot_s), price=price,
                    block_tokens=4, passes=passes, by_tenant=by_tenant)


def num_late(harness: Harness, mode: str = "queue") -> int:
    return harness.scheduler.stats()["num_late"][mode]


def greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True, n=n)


def prompt(seed: int, length: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(8, 40) for _ in range(length)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_pages, passes", [(80, 0), (24, LOOK)])
def test_whoever_is_called_late_is_late(seed: int, num_pages: int, passes: int) -> None:
    """Also when prompts share what another one computes meanwhile, and when small ones pass a large one that
    has no room; and most are found."""
    dice = random.Random(seed)
    aim = dice.choice((3.0, 5.0))
    harness = Harness(num_rows=4, num_pages=num_pages, max_step_tokens=STEP_TOKENS, max_model_len=64,
                      depth=1 + seed % 2, overload=overload("queue", aim, passes), check=False)
    stems = [prompt(number, 24) for number in range(3)]
    for number in range(40):
        own = prompt(100 + number, dice.randint(1, 30))
        harness.add(str(number), [*dice.choice(stems)[:dice.choice((0, 0, 13, 24))], *own], greedy(3))
        if dice.random() < 0.35:
            harness.step()
    called = num_late(harness)
    harness.run()
    late = {name for (name, _), told in harness.told.items() if told.last.account.get("late")}
    missed = {record.id for record in harness.trace.requests if ttft_s(record) > aim}
    assert late <= missed and len(late) > len(missed) / 2, (late - missed, len(late), len(missed))
    assert called


@pytest.mark.parametrize("policy", [
    "priority", "shortest", "fair", "reuse", "chunked:8", "prefill", "throughput"])
@pytest.mark.parametrize("seed, num_pages", [(1, 80), (2, 24)])
def test_in_a_policy_s_own_order_whoever_is_called_late_is_late(policy: str, seed: int,
                                                                 num_pages: int) -> None:
    """And more are found than by their own prompts, of which each would be in time alone."""
    dice, bound = random.Random(seed), make_policy(policy, NEEDS)
    harness = Harness(num_rows=4, num_pages=num_pages, max_step_tokens=STEP_TOKENS, max_model_len=64,
                      policy=policy, check=False,
                      overload=overload("queue", 5.0, bound.passes, by_tenant=bound.by_tenant))
    for number in range(60):
        harness.add(str(number), prompt(number, dice.randint(1, 40)), greedy(dice.randint(1, 6)),
                    priority=dice.randint(0, 2), tenant=dice.choice("ab"))
        if dice.random() < 0.2:
            harness.step()
    called = num_late(harness)
    harness.run()
    late = {name for (name, _), told in harness.told.items() if told.last.account.get("late")}
    assert late <= {record.id for record in harness.trace.requests if ttft_s(record) > 5.0}
    assert called > 20


@pytest.mark.parametrize("mode", list(Mode))
def test_who_is_behind_too_long_a_prompt_is_too_slow_even_alone(mode: Mode) -> None:
    """A token behind 40 others takes 1/16 s and longer; no waiting helps, and a single token has no TPOT."""
    def slow(step: Shape) -> float:
        return price(step) + float(step.start.sum()) / 100

    harness = Harness(max_step_tokens=64, depth=1, overload=Overload(
        mode=mode, targets=Targets(ttft_s=9.0, tpot_s=0.3), price=slow, block_tokens=4, passes=0))
    harness.add("long", prompt(1, 40), greedy(3))
    harness.add("one", prompt(2, 40), greedy(1))
    harness.add("short", prompt(3, 10), greedy(3))
    harness.run()
    assert num_late(harness, str(mode)) == 1
    last = harness.told["long", 0].last
    assert last.account["late"] and "retry_after_s" not in last.account
    if mode is Mode.SHED:
        assert last.finish is Finish.SHED and "due 0.3 s after the one before" in last.error
    assert harness.finish_of("one") is harness.finish_of("short") is Finish.LENGTH


def test_what_a_cache_or_a_neighbour_brings_along_is_not_counted() -> None:
    """Ten equal prompts are the work of one, whether it is computed already or about to be."""
    for equal in (True, False):
        harness = Harness(num_rows=2, max_step_tokens=STEP_TOKENS, depth=1, overload=overload("queue", 3.5))
        for number in range(10):
            harness.add(str(number), prompt(1 if equal else number, 41), greedy(1))
        harness.loop.launch()
        assert num_late(harness) == (0 if equal else 9)
        harness.run()
    late = num_late(harness)
    harness.add("cached", prompt(9, 41), greedy(1))
    harness.add("new", prompt(10, 71), greedy(1))
    harness.loop.launch()
    assert num_late(harness) == late + 1
    harness.run()
    assert harness.told["new", 0].last.account["late"]


def test_who_is_shed_holds_nothing_and_is_told_when_to_come_again() -> None:
    """By the work before it at once; by its own once its deadline has passed in the queue."""
    harness = Harness(num_rows=1, max_step_tokens=STEP_TOKENS, depth=1, overload=overload("shed", 4.0))
    harness.add("runs", prompt(1, 40), greedy(6))
    harness.step()
    harness.add("waits", prompt(2, 16), greedy(2, n=2))
    harness.add("far", prompt(3, 40), greedy(2))
    harness.step()
    far = harness.told["far", 0].last
    assert far.finish is Finish.SHED and "at least" in far.error
    assert far.account["late"] and far.account["retry_after_s"] == 1.0
    assert not harness.told["waits", 0].last
    for _ in range(4):
        harness.step()
    for choice in (0, 1):
        assert harness.told["waits", choice].last.finish is Finish.SHED
    harness.run()
    assert harness.finish_of("runs") is Finish.LENGTH and num_late(harness, "shed") == 3
    assert harness.scheduler.stats()["finished"]["shed"] == 3


def test_who_is_degraded_lets_those_pass_who_can_still_make_it() -> None:
    harness = Harness(num_rows=1, max_step_tokens=STEP_TOKENS, depth=1, overload=overload("degrade", 3.0))
    harness.add("large", prompt(1, 60), greedy(2))
    harness.add("small", prompt(2, 5), greedy(2))
    harness.run()
    records = {record.id: record for record in harness.trace.requests}
    assert ttft_s(records["small"]) == 1.0 and ttft_s(records["large"]) > 3.0
    accounts = [harness.told[name, 0].last.account for name in ("large", "small")]
    assert ["late" in account for account in accounts] == [True, False]
    assert num_late(harness, "degrade") == 1 and num_late(harness, "shed") == 0


def test_without_an_order_only_ones_own_work_is_certain() -> None:
    for passes, late in ((None, 0), (0, 1), (1, 0)):
        harness = Harness(num_rows=1, max_step_tokens=STEP_TOKENS, depth=1,
                          overload=overload("queue", 3.0, passes))
        harness.add("first", prompt(1, 40), greedy(1))
        harness.add("second", prompt(2, 20), greedy(1))
        harness.loop.launch()
        assert num_late(harness) == late, passes
        harness.run()


def test_under_slo_the_later_class_is_degraded_and_still_served() -> None:
    """All there at once, of which half can be in time: those of the sooner class are, whoever came first."""
    harness = Harness(num_rows=2, max_step_tokens=STEP_TOKENS, policy="slo",
                      overload=overload("degrade", 6.0, make_policy("slo", NEEDS).passes))
    for number in range(8):
        harness.add(str(number), prompt(number, 16), greedy(1), priority=1 - number % 2)
    harness.run()
    served_s = {int(record.id): ttft_s(record) or 99.0 for record in harness.trace.requests}
    degraded = {int(name) for (name, _), told in harness.told.items() if told.last.account.get("late")}
    assert degraded and all(number % 2 == 0 for number in degraded)
    assert all(served_s[number] <= 6.0 for number in (1, 3, 5, 7))
    assert max(served_s, key=served_s.__getitem__) in degraded and len(served_s) == 8
    assert num_late(harness, "degrade") == len(degraded)
