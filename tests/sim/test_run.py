"""Protects simulated serving: times that can be counted by hand, clients that leave, refusals, capacity."""

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.base.stats import ttft_parts
from ridgeline.schedule.targets import Targets
from ridgeline.sim.capacity import find_capacity
from ridgeline.sim.node import Node, Serving
from ridgeline.sim.outcome import Meter, outcome_of
from ridgeline.sim.report import capacity_text
from ridgeline.sim.run import Clients, check_targets, prompt_of, request_of, simulate
from ridgeline.workload.offered import Offered, Workload
from tests.sim.helpers_sim import machine, workload

FCFS = Serving()


def test_one_request_takes_its_prompts_step_and_one_step_a_token() -> None:
    one = simulate(machine(), FCFS, workload((5.0, 20, 4)))
    assert one.latencies["ttft"]["p50"] == pytest.approx(1.20)
    assert one.latencies["tpot"]["p50"] == pytest.approx(1.01)
    assert one.latencies["e2e"]["p50"] == pytest.approx(1.20 + 3 * 1.01)
    assert one.duration_s == pytest.approx(4.23) and one.output_tok_s == pytest.approx(4 / 4.23)
    assert one.goodput == pytest.approx(1 / 4.23) and one.num_steps == 4
    assert one.cost["usd_per_million_output_tokens"] == pytest.approx(3.6 / 3600 * 4.23 / 4 * 1e6)


def test_the_first_step_after_a_pause_takes_longer_and_no_other() -> None:
    meter = Meter(200)
    node = Node(replace(machine(), waking=lambda seconds: seconds / 2), FCFS, meter)
    Clients(node, workload((5.0, 20, 4), (8.0, 20, 4), (60.0, 20, 4)), 1000).run()
    first_s = {one.record.id: one.record.first_token_s for one in meter.ended}
    assert first_s["0"] == pytest.approx(5.0 + 1.8) and first_s["2"] == pytest.approx(60.0 + 1.8)
    assert first_s["1"] == pytest.approx(6.8 + 3 * 1.01 + 1.2)


def test_a_request_that_comes_while_a_step_runs_waits_for_it_and_for_the_one_begun_behind_it() -> None:
    """As in the live engine, which plans one step ahead: 'two' comes in step 2, step 3 is planned already."""
    meter = Meter(200)
    node = Node(machine(), FCFS, meter)
    Clients(node, workload((0.0, 10, 6), (1.5, 10, 1)), 1000).run()
    first_s = {one.record.id: one.record.first_token_s for one in meter.ended}
    assert first_s["0"] == pytest.approx(1.10)
    assert first_s["1"] == pytest.approx(1.10 + 2 * 1.01 + 1.11)


def test_e2e_is_ttft_and_tpot_for_each_further_token() -> None:
    meter = Meter(200)
    requests = [(0.3 * i, 5 + 7 * i % 40, 1 + 5 * i % 17) for i in range(30)]
    Clients(Node(machine(), FCFS, meter), workload(*requests), 1000).run()
    assert len(meter.ended) == 30
    for one in meter.ended:
        record = one.record
        assert record.num_output == len(one.times_s) == 1 + 5 * int(record.id) % 17
        ttft, e2e = one.times_s[0] - record.arrived_s, record.finished_s - record.arrived_s
        tpot = np.diff(one.times_s).mean() if record.num_output > 1 else 0.0
        assert e2e == pytest.approx(ttft + (record.num_output - 1) * tpot)


@pytest.mark.parametrize("num_pages", [110, 36])
def test_a_prefix_cache_that_serves_nobody_is_left_out_and_nothing_is_said_otherwise(num_pages: int) -> None:
    """And with preemptions, whose victims find what they computed, it is there."""
    load = workload(*[(0.9 * i, 5 + 7 * i % 40, 1 + 5 * i % 37) for i in range(20)])
    where, meter = machine(num_pages=num_pages), Meter(num_pages)
    node = Node(where, FCFS, meter)
    Clients(node, load, where.capacity.vocab_size).run()
    found = simulate(where, FCFS, load)
    assert (found.preemptions > 0) == (num_pages == 36) and node.manager.stats.num_evicted_pages
    assert found == outcome_of("fcfs", [meter], num_offered=20, num_refused=0, targets=FCFS.targets,
                               num_devices=1, usd_per_hour=3.6, host={})


def test_littles_law_holds_of_three_independent_measures() -> None:
    """Arrivals are counted at the door, the number inside by the scheduler, each one's time by its record;
    leaps or not."""
    meter = Meter(200)
    node = Node(machine(), FCFS, meter)
    Clients(node, workload(*[(0.9 * i, 5 + 7 * i % 40, 1 + 5 * i % 17) for i in range(60)]), 1000).run()
    law = node.loop.stats()["little_law"]
    times = [one.record.finished_s - one.record.arrived_s for one in meter.ended]
    assert abs(law["difference"]) < 0.01  # type: ignore[index]
    assert law["num_in_system"] == pytest.approx(  # type: ignore[index]
        len(times) / node.clock.now() * np.mean(times), rel=0.01)


def test_a_client_that_goes_away_is_lost_and_its_tokens_were_for_nobody() -> None:
    load = Workload(about="", requests=[Offered(arrived_s=0.0, num_prompt=4, num_output=50, patience_s=5.0),
                                        Offered(arrived_s=0.0, num_prompt=4, num_output=3, patience_s=99.0)])
    one = simulate(machine(), Serving(targets=Targets(ttft_s=2.0, tpot_s=2.0)), load)
    assert (one.num_finished, one.num_good, one.num_lost) == (1, 1, 1) and one.attainment == 0.5
    assert 3 <= one.unwanted_tokens <= 5 and one.duration_s == pytest.approx(5.0)


def test_tokens_behind_their_deadlines_are_unwanted() -> None:
    late = simulate(machine(num_rows=1), Serving(targets=Targets(ttft_s=1.5, tpot_s=3.5)),
                    workload((0.0, 4, 5), (0.0, 4, 3)))
    assert late.num_good == 1 and late.unwanted_tokens == 2  # due at 1.5, 5, 8.5; the last comes in time
    assert simulate(machine(num_rows=1), Serving(targets=Targets(ttft_s=1.5)),
                    workload((0.0, 4, 5), (0.0, 4, 3))).unwanted_tokens == 3


def test_a_request_that_can_never_run_is_refused_and_counts_as_offered() -> None:
    one = simulate(machine(max_model_len=64), FCFS, workload((0.0, 100, 4), (0.0, 10, 4)))
    assert (one.num_refused, one.num_finished, one.attainment) == (1, 1, 0.5)


def test_closed_arrivals_keep_so_many_in_the_system() -> None:
    load = replace(workload(*[(0.0, 8, 4)] * 9), num_at_a_time=3)
    one = simulate(machine(), FCFS, load)
    assert one.num_finished == 9 and one.duration_s > 3 * 4
    assert one.kv_occupancy["max"] <= 3 * 3 / 199


def test_prompts_share_what_their_blocks_say_and_nothing_else() -> None:
    a, b, c = (Offered(arrived_s=0, num_prompt=10, num_output=1, prefix=prefix, block_tokens=4)
               for prefix in ((7, 8), (7, 9), ()))
    one, two = prompt_of(a, 0, 1000), prompt_of(b, 1, 1000)
    assert one[:4].tolist() == two[:4].tolist() and not np.any(one[4:] == two[4:])
    assert one.dtype == np.int32 and one.min() >= 0 and one.max() < 1000
    assert request_of(a, 0, 1000).cache_salt == request_of(b, 1, 1000).cache_salt == ""
    assert request_of(c, 2, 1000).cache_salt != request_of(c, 3, 1000).cache_salt
    hit = Meter(200)
    load = Workload(requests=[a, replace(b, arrived_s=9.0)], about="")
    Clients(Node(machine(), FCFS, hit), load, 1000).run()
    assert [one.record.num_cached for one in hit.ended] == [0, 4]


def test_slots_held_by_a_batch_until_its_last_request_ends_count_as_held() -> None:
    requests = workload((0.0, 4, 2), (0.0, 4, 10))
    freed, held = (Meter(200, batch_holds=holds) for holds in (False, True))
    for meter in (freed, held):
        Clients(Node(machine(), FCFS, meter), requests, 1000).run()
    assert held.num_held == 2 * 10 and held.num_rows == freed.num_rows == 12 > 0
    assert freed.num_held < held.num_held


def test_equal_runs_give_equal_numbers() -> None:
    load = workload(*[(0.4 * i, 5 + i % 30, 1 + i % 11) for i in range(40)])
    assert simulate(machine(), FCFS, load) == simulate(machine(), FCFS, load)


def test_capacity_is_the_border_of_the_rates_that_serve_enough() -> None:
    base = simulate(machine(), FCFS, workload((0.0, 4, 2)))

    def at(rate: float):  # type: ignore[no-untyped-def]
        return replace(base, num_offered=100, num_good=100 if rate <= border else 10)

    for border in (0.013, 1.0, 37.0):
        found = find_capacity(at, 0.9)
        assert found.rate <= border < found.rate * 1.021 and found.outcome.attainment == 1.0
        lasts = 100 / found.rate >= 3 * base.latencies["e2e"]["p50"]
        assert ("a burst" not in capacity_text([found])) == lasts == (border < 30)
    border = 0.0
    assert find_capacity(at, 0.9).rate == 0.0


def test_a_target_below_the_floor_says_the_floor() -> None:
    load = workload((0.0, 50, 3), (0.0, 20, 3))
    check_targets(machine(), Targets(ttft_s=1.3, tpot_s=1.1), load)
    with pytest.raises(ConfigError, match=r"--ttft 1100ms .* 20 tokens takes at least 1.2e\+03 ms"):
        check_targets(machine(), Targets(ttft_s=1.1), load)
    with pytest.raises(ConfigError, match="--tpot"):
        check_targets(machine(), Targets(tpot_s=1.0), load)


def test_the_parts_of_ttft_and_littles_law() -> None:
    """Of a crowd through few rows, stepped or leapt over: the parts of each record sum to its TTFT, and
    number in the system = arrival rate x time in the system, each measured for itself."""
    meter = Meter(200)
    requests = [(0.6 * i, 5 + 7 * i % 40, 1 + 5 * i % 17) for i in range(60)]
    node = Node(machine(), FCFS, meter)
    Clients(node, workload(*requests), 1000).run()
    for one in meter.ended:
        parts = ttft_parts(one.record)
        assert sum(parts.values()) == pytest.approx(one.times_s[0] - one.record.arrived_s)
        assert min(parts.values()) >= 0 and parts["prefill"] > 0
        assert sum(one.record.waits_s.values()) == pytest.approx(parts["queue"])
    law = node.loop.little_law()
    assert law["num_in_system"] == pytest.approx(law["arrival_rate"] * law["time_in_system_s"], rel=1e-6)
    spent_s = sum(one.record.finished_s - one.record.arrived_s for one in meter.ended)
    assert law["time_in_system_s"] == pytest.approx(spent_s / 60) and law["num_in_system"] > 1
    found = simulate(machine(), FCFS, workload(*requests)).as_json()
    assert sum(found["ttft_parts"].values()) == pytest.approx(
        np.mean([one.times_s[0] - one.record.arrived_s for one in meter.ended]))
    assert found["little_law"] == pytest.approx(dict(law))
