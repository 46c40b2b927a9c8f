"""Protects what pictures are made of: a slot's segments are its steps, idle is what it held in vain."""

from dataclasses import replace

import pytest

from ridgeline.sim.cluster import Topology
from ridgeline.sim.node import Serving
from ridgeline.sim.study import Run, watch
from tests.sim.helpers_sim import machine, workload

ENGINE = replace(machine(num_rows=2), cache_bytes=lambda num_tokens: 10.0 * num_tokens,
                 link_bytes_per_s=100.0)


def segments(run: Run, engine: int = 0) -> list[tuple[int, str, int, float, float]]:
    return [(one.slot, one.kind, one.request, round(one.begin_s, 6), round(one.end_s, 6))
            for one in run.engines[engine].segments]


def test_a_prompt_then_its_answer_in_one_slot() -> None:
    run = watch("one", Topology(engines=(ENGINE,)), Serving(), workload((0.0, 20, 4), (0.0, 10, 2)))
    assert segments(run) == [(0, "prefill", 0, 0.0, 1.3), (0, "decode", 0, 1.3, 1.3 + 1.02 + 2 * 1.01),
                             (1, "prefill", 1, 0.0, 1.3), (1, "decode", 1, 1.3, 2.32)]
    times, held = run.engines[0].times_s, run.engines[0].occupancy
    assert times == sorted(times) and len(times) == len(held) and max(held) == pytest.approx(9 / 199)
    assert run.outcome.num_finished == 2 == len(run.ended)


def test_a_split_shows_both_engines() -> None:
    run = watch("split", Topology(engines=(ENGINE,), decode=(ENGINE,)), Serving(), workload((0.0, 20, 4)))
    assert [one.name for one in run.engines] == ["prefill 1", "decode 2"]
    assert segments(run) == [(0, "prefill", 0, 0.0, 1.2)]
    assert segments(run, 1) == [(0, "decode", 0, 3.2, 3.2 + 3 * 1.01)]


def test_segments_of_a_slot_never_overlap_and_cover_its_tokens() -> None:
    requests = [(0.4 * i, 3 + 29 * i % 90, 1 + 7 * i % 9) for i in range(20)]
    run = watch("many", Topology(engines=(ENGINE,)), Serving(), workload(*requests))
    by_slot: dict[int, float] = {}
    for one in run.engines[0].segments:
        assert one.begin_s >= by_slot.get(one.slot, 0.0) - 1e-9 and one.end_s > one.begin_s
        by_slot[one.slot] = one.end_s
    for ended in run.ended:
        number = int(ended.record.id)
        mine = [one for one in run.engines[0].segments if one.request == number]
        assert max(one.end_s for one in mine) == pytest.approx(ended.record.finished_s)
        assert mine[0].kind == "prefill" and (requests[number][2] == 1 or mine[-1].kind == "decode")
