"""Protects the page of the four schedulers: what each is known for comes out of the scheduler that serves, no
time is lost or invented."""

import pytest

from ridgeline.planner.labs.schedulers import SCHEDULERS, Costs, Course, schedule
from ridgeline.workload.offered import Offered

COSTS = Costs(prompt=lambda tokens: tokens / 1000, step=lambda batch, context: 0.01,
              transfer=lambda tokens: 0.001)
MIXED = [Offered(arrived_s=at, num_prompt=prompt, num_output=output)
         for at, prompt, output in ((0.0, 100, 50), (0.0, 100, 5), (0.0, 900, 5), (0.5, 100, 20))]
SLOTS = 2


@pytest.fixture(scope="module")
def courses() -> dict[str, Course]:
    return schedule(MIXED, slots=SLOTS, chunk=50, costs=COSTS)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_one_request_alone_takes_its_prompt_and_its_steps(name: str) -> None:
    (life,) = schedule(MIXED[:1], slots=SLOTS, chunk=50, costs=COSTS)[name].lives
    transfer = 0.001 if name == "disaggregated" else 0.0
    assert life.queued_s == life.held_s == 0
    assert life.ttft_s == pytest.approx(0.1 + transfer)
    assert life.decode_s == pytest.approx(49 * 0.01)
    assert life.gap_s == pytest.approx(0.01)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_slots_are_never_used_more_than_there_are(name: str, courses: dict[str, Course]) -> None:
    one = courses[name]
    assert 0 < one.row_s <= SLOTS * one.end_s + 1e-9
    assert all(life.queued_s >= 0 and life.prefill_s > 0 for life in one.lives)
    assert [life.arrival_s for life in one.lives] == [0.0, 0.0, 0.0, 0.5]
    if name != "disaggregated":
        held = sum(life.held_s for life in one.lives)
        assert one.row_s + held <= SLOTS * one.end_s + 1e-9


def test_a_static_batch_holds_its_slots_until_its_longest_is_done(courses: dict[str, Course]) -> None:
    first, second, third, _ = courses["static"].lives
    assert second.held_s == pytest.approx(first.end_s - second.end_s) and second.held_s > 0
    assert third.queued_s >= first.end_s
    assert all(life.held_s == 0 for life in courses["continuous"].lives)
    assert courses["continuous"].end_s < courses["static"].end_s


def test_a_whole_prompt_stalls_the_others_and_a_chunk_does_not(courses: dict[str, Course]) -> None:
    """The longest wait is a step with the prompt, or with the chunk, which has the step's decode in it."""
    longest = {name: max(life.gap_s for life in one.lives) for name, one in courses.items()}
    assert longest["continuous"] == pytest.approx(0.9 + 0.01)
    assert longest["chunked"] == pytest.approx(0.049 + 0.01)
    assert longest["disaggregated"] < 0.2  # an answer may wait for a slot
