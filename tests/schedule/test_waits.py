"""What a request waited for: each reason where it is the reason, stretches that sum to the whole wait, and a
note that costs nothing when nothing changed."""

import random

import pytest

from ridgeline.base.stats import ttft_parts, ttft_s
from ridgeline.schedule.request import Request
from ridgeline.schedule.waits import Waits
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import Harness


def greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True, n=n)


def waits(harness: Harness) -> dict[str, dict[str, float]]:
    """Stretches of some length, by request and choice."""
    return {f"{record.id}{record.choice or ''}": {str(k): s for k, s in record.waits_s.items() if s}
            for record in harness.trace.requests}


def test_no_free_row_and_those_behind() -> None:
    harness = Harness(num_rows=1, depth=1)
    for name in "abc":
        harness.add(name, [1, 2, 3], greedy(4))
    harness.run()
    assert waits(harness) == {"a": {}, "b": {"rows": 4.0}, "c": {"behind_rows": 4.0, "rows": 4.0}}


def test_no_pages() -> None:
    harness = Harness(num_pages=9, depth=1)
    harness.add("a", [1, 2, 3] * 7, greedy(8))
    harness.add("b", [4, 5, 6] * 5, greedy(4))
    harness.run()
    assert waits(harness) == {"a": {}, "b": {"pages": 8.0}}


def test_a_policy_that_starts_no_more() -> None:
    harness = Harness(num_rows=2, depth=1, policy="static")
    for name, length in (("a", 2), ("b", 5), ("c", 2)):
        harness.add(name, [1, 2, 3], greedy(length))
    harness.run()
    assert waits(harness)["c"] == {"rows": 2.0, "policy": 3.0}


def test_the_budget_of_a_step() -> None:
    harness = Harness(max_step_tokens=8, depth=1)
    harness.add("a", [1, 2, 3] * 6, greedy(2))
    harness.add("b", [4, 5, 6], greedy(2))
    harness.run()
    assert waits(harness)["b"] == {"budget": 2.0} and harness.trace.requests[0].num_chunks == 3


def test_a_forks_parent_and_the_step_in_flight() -> None:
    """A choice waits for the first one's prompt; who comes during a step waits for its end."""
    harness = Harness(depth=1)
    harness.add("a", [1, 2, 3] * 4, greedy(4, n=2))
    harness.loop.launch()
    harness.clock.advance_to(0.5)
    harness.add("b", [4, 5, 6], greedy(2))
    harness.run()
    assert waits(harness) == {"a": {}, "a1": {"fork": 1.5}, "b": {"step": 1.0}}


def test_a_preemption() -> None:
    harness = Harness(num_pages=11, depth=1)
    harness.add("a", [1, 2, 3] * 4, greedy(16))
    harness.add("b", [4, 5, 6] * 4, greedy(16))
    harness.run()
    assert harness.scheduler.stats()["num_preemptions"]
    assert set(waits(harness)["b"]) == {"preempted"}


@pytest.mark.parametrize("seed", range(3))
def test_all_stretches_sum_to_the_wait_and_the_parts_to_ttft(seed: int) -> None:
    """Of a crowd that comes and goes; Little's law holds of it, its three numbers measured apart."""
    dice = random.Random(seed)
    harness = Harness(num_pages=24, num_rows=3, max_step_tokens=16, depth=2)
    for number in range(24):
        prompt = [dice.randrange(8, 40) for _ in range(dice.randint(1, 30))]
        harness.add(str(number), prompt, greedy(dice.randint(1, 8), n=dice.choice((1, 1, 2))))
        for _ in range(dice.randrange(4)):
            harness.step()
        if dice.random() < 0.1:
            harness.loop.abort(str(dice.randrange(number + 1)))
    law = harness.loop.stats()["little_law"]
    assert law["num_in_system"] > 1 and abs(law["difference"]) < 1e-9
    harness.run()
    for record in harness.trace.requests:
        if record.first_token_s is None or record.first_scheduled_s is None:
            continue
        parts = ttft_parts(record)
        assert sum(parts.values()) == pytest.approx(ttft_s(record)) and min(parts.values()) >= 0
        if not record.num_preemptions:
            assert sum(record.waits_s.values()) == pytest.approx(parts["queue"])
    stats = harness.loop.stats()
    assert not any(stats["waiting"].values())
    assert sum(stats["waited_s"].values()) == pytest.approx(
        sum(sum(record.waits_s.values()) for record in harness.trace.requests))
    assert 0 < stats["step_prefill_s"] < stats["step_measured_s"]


def test_a_plan_that_changes_nothing_notes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait: each is sorted once, when it comes."""
    harness = Harness(num_rows=2, depth=1, check=False, max_model_len=128)
    for number in range(200):
        harness.add(str(number), [1, 2, 3], greedy(40))
    noted: list[Request] = []
    begin = Waits.begin

    def count(self: Waits, request: Request, reason: object, since_s: float) -> None:
        noted.append(request)
        begin(self, request, reason, since_s)

    monkeypatch.setattr(Waits, "begin", count)
    harness.step()
    assert len(noted) == 199  # 198 that stand behind, of which the first waits for a row
    for _ in range(20):
        harness.step()
    assert len(noted) == 199
