"""Protects the benchmark's driver: the asked concurrency, whole outputs, prompts that no round repeats."""

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.bench.drive import Driver, Prompts, Shape
from ridgeline.bench.tables import step_table
from ridgeline.schedule.plan import StepPlan
from tests.helpers_schedule import VOCAB, Harness

SHAPE = Shape(num_requests=7, concurrency=3, prompt_tokens=9, output_tokens=6)


def driver_of(harness: Harness) -> Driver:
    return Driver(harness.loop, harness.trace, harness.clock, Prompts(VOCAB, seed=1))


def test_a_round_runs_all_requests_and_never_more_at_once() -> None:
    harness = Harness(check=False)
    done = driver_of(harness).run(SHAPE)
    assert [r.num_output for r in done.requests] == [6] * 7
    assert {r.finish for r in done.requests} == {"length"}
    assert max(s.running + s.waiting for s in done.steps) == 3
    assert done.wall_s == sum(1.0 for _ in done.steps)
    harness.assert_clean()


def test_rounds_do_not_meet_their_own_prompts_in_the_prefix_cache() -> None:
    harness = Harness(check=False)
    driver = driver_of(harness)
    rounds = [driver.run(SHAPE) for _ in range(3)]
    assert all(len(r.requests) == SHAPE.num_requests for r in rounds), "a round keeps its own records"
    cached = sum(r.num_cached for done in rounds for r in done.requests)
    assert cached < 0.05 * 3 * SHAPE.num_requests * SHAPE.prompt_tokens, "more than chance, with 40 ids"


def test_a_failed_request_fails_the_benchmark() -> None:
    def fail(plan: StepPlan) -> list[int]:
        return [0] if plan.step == 4 else []

    with pytest.raises(ConfigError, match="a benchmark request failed: broken on purpose"):
        driver_of(Harness(check=False, fail=fail)).run(SHAPE)


def test_a_step_table_has_a_time_for_each_count() -> None:
    harness = Harness(check=False, num_pages=400, max_step_tokens=128, max_model_len=256)
    table = step_table(driver_of(harness), max_rows=8, max_chunk=128)
    assert table.rows == (1, 2, 4, 5, 8) and table.chunk == (32, 128)
    assert len(table.row_s) == 5 and len(table.chunk_s) == 2


def test_counts_that_the_cache_cannot_hold_at_once_are_left_out_of_the_table() -> None:
    harness = Harness(check=False, num_pages=44, max_step_tokens=128, max_model_len=256)
    table = step_table(driver_of(harness), max_rows=8, max_chunk=128)
    assert table.rows == (1, 2, 4)  # a text takes 10 pages in the end
    with pytest.raises(ConfigError, match="raise --max-num-seqs"):
        step_table(driver_of(harness), max_rows=1, max_chunk=128)
