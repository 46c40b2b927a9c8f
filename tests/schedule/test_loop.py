"""The loop: pipelining, faults, liveness and the records it leaves."""

import numpy as np
import pytest

from ridgeline.base.errors import EngineDeadError
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.plan import StepPlan
from ridgeline.schedule.records import Prices
from ridgeline.schedule.request import Finish, NewRequest
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import FakeExecutor, Harness, expected


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True)


def test_the_pipeline_is_as_deep_as_the_executor_allows() -> None:
    for depth in (1, 2, 3):
        harness = Harness(depth=depth)
        harness.add("a", [1, 2, 3], greedy(12))
        harness.loop.launch()
        assert harness.loop.stats()["num_in_flight"] == depth
        harness.run()


def test_without_a_cache_steps_do_not_overlap() -> None:
    """The naive path feeds every known token, so the next step needs the last one's token on the host."""
    harness = Harness(depth=3, cache=False, max_step_tokens=128)
    harness.add("a", [1, 2, 3], greedy(12))
    harness.loop.launch()
    assert harness.loop.stats()["num_in_flight"] == 1
    harness.run()


def test_progress_counts_steps_and_idle_tells_the_end() -> None:
    harness = Harness()
    assert harness.loop.idle() and harness.loop.progress() == 0 and harness.step() == []
    harness.add("a", [1, 2, 3], greedy(5))
    assert harness.loop.has_work()
    harness.run()
    assert harness.loop.idle() and harness.loop.progress() == 5


def test_a_failed_row_ends_alone_and_its_blocks_are_not_reused() -> None:
    """The row's error is told; its batch goes on; the same prompt afterwards finds nothing of the failed
    step."""
    def fail(plan: StepPlan) -> list[int]:
        return np.flatnonzero((plan.request == 1) & (plan.start == 0)).tolist()

    harness = Harness(fail=fail)
    harness.add("good", [1, 2, 3], greedy(9))
    harness.add("bad", [4 + i for i in range(20)], greedy(9))
    harness.run()
    assert harness.finish_of("bad") is Finish.ERROR
    assert harness.told["bad", 0].last.error == "broken on purpose"
    assert harness.told["good", 0].tokens == expected([1, 2, 3], greedy(9), 1, 128)[0]
    harness.add("again", [4 + i for i in range(20)], greedy(9))
    harness.run()
    assert harness.told["again", 0].last.num_cached == 0 and harness.finish_of("again") is Finish.LENGTH


def test_a_failed_first_choice_does_not_take_the_others_along() -> None:
    harness = Harness(fail=lambda plan: np.flatnonzero(plan.request == 0).tolist())
    harness.add("a", [1, 2, 3, 4, 5, 6], SamplingParams(seed=1, max_tokens=4, ignore_eos=True, n=3))
    harness.run()
    assert harness.finish_of("a", 0) is Finish.ERROR
    assert harness.finish_of("a", 1) is harness.finish_of("a", 2) is Finish.LENGTH


def test_a_step_that_raises_fails_its_requests_and_the_engine_goes_on() -> None:
    """Also with the next step in flight already, which holds placeholders of the failed one."""
    harness = Harness(num_rows=2, blow_up=lambda plan: RuntimeError("kernel") if plan.step == 2 else None)
    for i in range(4):
        harness.add(str(i), [1 + i, 2, 3], greedy(6))
    harness.run()
    assert [harness.finish_of(str(i)) for i in range(2)] == [Finish.ERROR] * 2
    assert harness.told["0", 0].last.error == "the step failed: RuntimeError: kernel"
    assert [harness.finish_of(str(i)) for i in (2, 3)] == [Finish.LENGTH] * 2
    assert sum(step.num_failed for step in harness.trace.steps) == 2


def test_a_step_that_cannot_begin_fails_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    harness.add("a", [1, 2, 3], greedy(6))
    begin = FakeExecutor.begin
    monkeypatch.setattr(FakeExecutor, "begin", lambda self, plan, now: 1 // 0)
    harness.step()
    monkeypatch.setattr(FakeExecutor, "begin", begin)
    assert "ZeroDivisionError" in harness.told["a", 0].last.error
    harness.add("b", [1, 2, 3], greedy(6))
    harness.run()
    assert harness.finish_of("b") is Finish.LENGTH


def test_a_dead_executor_is_not_survived() -> None:
    harness = Harness(blow_up=lambda plan: EngineDeadError("gone"))
    harness.add("a", [1, 2, 3], greedy(6))
    with pytest.raises(EngineDeadError):
        harness.step()


def priced_loop(harness: Harness, planned_s: float | None = None) -> Loop:
    prices = Prices(step=lambda plan: plan.num_tokens / 8, request=lambda *sizes: float(sum(sizes)),
                    planned=None if planned_s is None else lambda plan: planned_s)
    return Loop(harness.scheduler, harness.executor, harness.clock, harness.trace, prices)


def run_one(loop: Loop) -> None:
    loop.add(NewRequest(id="a", prompt=np.array([1, 2, 3], np.int32), params=greedy(2)))
    while loop.has_work():
        loop.step()


def test_prices_and_a_promise_go_into_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """floor_s is what the price says of the plan; planned_s what an executor that can tell says."""
    harness = Harness(depth=1)
    monkeypatch.setattr(FakeExecutor, "ready_at", lambda self, ticket: harness.clock.now() + 0.5)
    loop = priced_loop(harness, planned_s=0.25)
    run_one(loop)
    assert [(step.floor_s, step.planned_s) for step in harness.trace.steps] == [(0.375, 0.5), (0.125, 0.5)]
    assert [request.floor_s for request in harness.trace.requests] == [3.0 + 0.0 + 2.0]
    stats = loop.stats()
    assert stats["step_floor_s"] == 0.5
    assert stats["step_measured_s"] == sum(step.measured_s for step in harness.trace.steps)


def test_an_estimate_stands_in_for_an_executor_that_cannot_tell() -> None:
    harness = Harness(depth=1)
    run_one(priced_loop(harness, planned_s=0.25))
    assert [step.planned_s for step in harness.trace.steps] == [0.25, 0.25]
    harness = Harness(depth=1)
    run_one(priced_loop(harness))
    assert [step.planned_s for step in harness.trace.steps] == [None, None]


def test_the_end_of_the_oldest_step_is_known_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(depth=1)
    monkeypatch.setattr(FakeExecutor, "ready_at", lambda self, ticket: harness.clock.now() + 0.5)
    harness.add("a", [1, 2, 3], greedy(2))
    assert harness.loop.next_ready_at() is None
    harness.loop.launch()
    assert harness.loop.next_ready_at() == 0.5
    harness.run()
    assert harness.loop.next_ready_at() is None


def test_every_step_and_request_leaves_a_record() -> None:
    """Tokens by phase, pages, times: the records add up to what was computed and told."""
    harness = Harness(num_pages=40, max_step_tokens=8)
    for i in range(4):
        harness.add(str(i), [1 + i] * (6 + 5 * i), greedy(5))
    harness.run()
    steps, requests = harness.trace.steps, harness.trace.requests
    assert [step.step for step in steps] == list(range(len(steps)))
    assert sum(step.num_tokens for step in steps) == sum(plan.num_tokens for plan in harness.executor.plans)
    assert sum(step.num_sampled for step in steps) == 20 == sum(record.num_output for record in requests)
    assert all(step.used_pages + step.free_pages <= 39 and step.floor_s is None for step in steps)
    for record in requests:
        assert record.arrived_s <= record.first_scheduled_s <= record.first_token_s <= record.finished_s
        assert record.token_times_s[0] == record.first_token_s
        assert record.token_times_s[-1] == record.finished_s
    last = harness.told["3", 0].last
    assert last.times_s["finished"] == requests[-1].finished_s
    assert {name: last.account[name] for name in last.account if not name.startswith("waited")} == {
        "num_preemptions": 0, "wasted_tokens": 0, "num_reused_tokens": 0, "num_chunks": 4, "num_drafts": 0,
        "num_accepted": 0, "num_forced": 0, "reuse_limit": last.account["reuse_limit"]}
    assert last.account["reuse_limit"]
    assert {name for name in last.account if name.startswith("waited")} == {
        f"waited_{reason}_s" for reason in requests[-1].waits_s}
