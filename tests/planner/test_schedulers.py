"""Protects the model behind the page of the four schedulers: what each is known for comes out, and no time is
lost or invented."""

import pytest

from ridgeline.planner.labs.schedulers import SCHEDULERS, Costs, Life, Request, schedule

COSTS = Costs(prompt=lambda tokens: tokens / 1000, step=lambda batch, context: 0.01,
              transfer=lambda tokens: 0.001)
MIXED = [Request(prompt=100, output=50), Request(prompt=100, output=5), Request(prompt=900, output=5),
         Request(prompt=100, output=20, arrival_s=0.5)]


def lives(name: str, requests: list[Request] = MIXED, slots: int = 2) -> list[Life]:
    return schedule(name, requests, slots=slots, chunk=50, costs=COSTS)


def makespan(name: str) -> float:
    return max(life.end_s for life in lives(name))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_one_request_alone_takes_its_prompt_and_its_steps(name: str) -> None:
    (life,) = lives(name, MIXED[:1])
    transfer = 0.001 if name == "disaggregated" else 0.0
    assert life.queued_s == life.held_s == 0
    assert life.ttft_s == pytest.approx(0.1 + transfer)
    assert life.decode_s == pytest.approx(49 * 0.01)
    assert life.gap_s == pytest.approx(0.01)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_slots_are_never_used_more_than_there_are(name: str) -> None:
    of = lives(name)
    assert 0 < sum(life.busy_s + life.held_s for life in of) <= 2 * max(life.end_s for life in of) + 1e-9
    assert all(life.queued_s >= 0 and life.prefill_s > 0 for life in of)


def test_a_static_batch_holds_its_slots_until_its_longest_is_done() -> None:
    first, second, third, _ = lives("static")
    assert second.held_s == pytest.approx(first.end_s - second.end_s) and second.held_s > 0
    assert third.queued_s >= first.end_s
    assert all(life.held_s == 0 for life in lives("continuous"))
    assert makespan("continuous") < makespan("static")


def test_a_whole_prompt_stalls_the_others_and_a_chunk_does_not() -> None:
    """The longest wait is a step with the prompt, or with the chunk."""
    assert max(life.gap_s for life in lives("continuous")) == pytest.approx(0.9 + 0.01)
    assert max(life.gap_s for life in lives("chunked")) == pytest.approx(0.05 + 0.01)
    assert max(life.gap_s for life in lives("disaggregated")) == pytest.approx(0.01)
