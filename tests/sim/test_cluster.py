"""Protects many engines in one time: replicas are engines by themselves, a split computes every prompt once,
a cache travels at its link's pace and is not computed again, and no request is lost on the way."""

from dataclasses import replace

import pytest

from ridgeline.base.stats import ttft_parts
from ridgeline.base.trace import Record, StepRecord
from ridgeline.sim.cluster import Cluster, Topology, drive, simulate_cluster
from ridgeline.sim.node import Machine, Node, Serving
from ridgeline.sim.outcome import Ended, Meter
from ridgeline.sim.run import Clients, simulate
from ridgeline.workload.offered import Offered, Workload
from tests.sim.helpers_sim import machine, workload

FCFS = Serving()
ENGINE = replace(machine(), cache_bytes=lambda num_tokens: 10.0 * num_tokens, link_bytes_per_s=100.0)
MIXED = [(0.7 * i, 5 + 37 * i % 90, 1 + 5 * i % 13) for i in range(24)]


class Kept:
    """A trace that keeps the steps too, and so takes no leaps."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self._meter = Meter(200)

    @property
    def ended(self) -> list[Ended]:
        return self._meter.ended

    def add(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self.steps.append(record)
        self._meter.add(record)

    def close(self) -> None:
        """Nothing is held."""


def run(topology: Topology, load: Workload) -> list[Kept]:
    meters = [Kept() for _ in topology.machines]
    cluster = Cluster(topology, FCFS, meters)
    clients = Clients(cluster, load, 1000)
    if load.num_at_a_time:
        clients.run_closed(load.num_at_a_time)
    else:
        clients.run()
    assert not clients.num_refused and cluster.next_event_at() is None
    return meters


def test_a_single_replica_is_an_engine() -> None:
    one = simulate_cluster(Topology(engines=(ENGINE,)), FCFS, workload(*MIXED))
    assert one == simulate(ENGINE, FCFS, workload(*MIXED))


def test_replicas_in_turn_are_engines_with_every_nth_request() -> None:
    """A brute-force twin: each engine alone with its own requests."""
    meters = run(Topology(engines=(ENGINE,) * 3, router="round-robin"), workload(*MIXED))
    for i, meter in enumerate(meters):
        alone = Kept()
        Clients(Node(ENGINE, FCFS, alone), workload(*MIXED[i::3]), 1000).run()
        assert [one.times_s.tolist() for one in meter.ended] == [one.times_s.tolist() for one in alone.ended]


def test_a_split_hands_the_cache_on_once_the_prompt_is_done() -> None:
    """20 tokens: a step of 1.2 s, 200 bytes at 100 a second; then a decode for each further token."""
    first, second = run(Topology(engines=(ENGINE,), decode=(ENGINE,)), workload((5.0, 20, 4)))
    assert not first.ended and [step.prefill_tokens for step in first.steps] == [20]
    (ended,), there = second.ended, 5.0 + 1.2 + 2.0
    assert ended.times_s.tolist() == pytest.approx([there + 1.01 * i for i in range(4)])
    assert ended.record.first_token_s == pytest.approx(there) and ended.record.arrived_s == 5.0
    assert (ended.record.num_prompt, ended.record.num_output) == (20, 4) and ended.record.finish == "length"
    assert [step.prefill_tokens for step in second.steps] == [0, 0, 0]
    parts = {name: part for name, part in ttft_parts(ended.record).items() if part}
    assert parts == pytest.approx({"prefill": 1.2, "transfer": 2.0}) and ended.record.num_chunks == 1


@pytest.mark.parametrize(("router", "at_a_time"), [("round-robin", None), ("least-work", 5),
                                                   ("prefix", None)])
def test_nothing_is_lost_or_computed_twice_in_a_split(router: str, at_a_time: int | None) -> None:
    topology = Topology(engines=(ENGINE,) * 2, decode=(ENGINE,) * 3, router=router)
    load = replace(workload(*MIXED), num_at_a_time=at_a_time)
    meters = run(topology, load)
    ended = [one for meter in meters for one in meter.ended]
    assert sorted(int(one.record.id) for one in ended) == list(range(len(MIXED)))
    for one in ended:
        _, prompt, output = MIXED[int(one.record.id)]
        times = one.times_s.tolist()
        assert (one.record.num_prompt, one.record.num_output, len(times)) == (prompt, output, output)
        assert times == sorted(times)
        assert times[0] - one.record.arrived_s >= 1.0 + (0.11 if output > 1 else 0.01) * prompt - 1e-9
    computed = sum(step.prefill_tokens for meter in meters[:2] for step in meter.steps)
    assert computed == sum(prompt for _, prompt, _ in MIXED)
    assert not any(step.prefill_tokens for meter in meters[2:] for step in meter.steps)
    assert sum(bool(meter.steps) for meter in meters) >= 4


def test_a_prefill_engine_s_pages_are_pinned_until_the_cache_has_arrived() -> None:
    """Pages for one prompt of 22 tokens: a step of 1.22 s and 2.2 s on the way, then the next may begin."""
    small = replace(ENGINE, capacity=replace(ENGINE.capacity, num_pages=7))
    topology = Topology(engines=(small,), decode=(ENGINE,))
    meters = [Kept(), Kept()]
    cluster = Cluster(topology, FCFS, meters)
    clients = Clients(cluster, workload(*[(0.0, 22, 4)] * 3), 1000)
    clients.run()
    first = cluster.nodes[0].loop
    first.check()
    assert first.stats()["num_used_pages"] == 0 and cluster.next_event_at() is None
    assert [step.started_s for step in meters[0].steps] == pytest.approx([0.0, 3.42, 6.84])
    ended = sorted((one.record for one in meters[1].ended), key=lambda one: one.first_token_s or 0.0)
    assert [one.first_token_s for one in ended] == pytest.approx([3.42, 6.84, 10.26])
    assert [one.waits_s.get("pages", 0) + one.waits_s.get("behind_pages", 0) for one in ended] == \
        pytest.approx([0.0, 3.42, 6.84])


def test_the_token_that_comes_with_a_cache_is_output() -> None:
    """To the decode engine as to the client: its prompt is the prompt, and a policy sees an answer begun."""
    topology = Topology(engines=(ENGINE,), decode=(ENGINE,))
    cluster = Cluster(topology, FCFS, meters := [Kept(), Kept()])
    Clients(cluster, workload((0.0, 20, 4), (0.5, 8, 1), (0.9, 30, 9)), 1000).run()
    stats = cluster.nodes[1].loop.stats()
    assert stats["num_prompt_tokens"] == 20 + 30 and stats["num_generated_tokens"] == 3 + 8
    ended = [one for meter in meters for one in meter.ended]
    sizes = sorted((one.record.num_prompt, one.record.num_output) for one in ended)
    assert sizes == [(8, 1), (20, 4), (30, 9)]
    assert all(len(one.times_s) == one.record.num_output for one in ended)


def test_caches_wait_where_there_is_no_room_for_them() -> None:
    """A decode engine with pages for one request at a time works them off one by one, from their caches."""
    small = replace(ENGINE, capacity=replace(ENGINE.capacity, num_pages=8), link_bytes_per_s=1e9)
    _, second = run(Topology(engines=(ENGINE,), decode=(small,)), workload(*[(0.0, 12, 8)] * 3))
    assert sum(step.prefill_tokens for step in second.steps) == 0 and len(second.ended) == 3
    assert max(step.running for step in second.steps) == 1 and len(second.steps) == 3 * 7


def test_a_cache_that_was_handed_on_and_lost_is_computed_again() -> None:
    """Two answers outgrow the decode engine's pages: who is put aside has no cache to come back to."""
    small = replace(ENGINE, capacity=replace(ENGINE.capacity, num_pages=13), link_bytes_per_s=1e9)
    topology = Topology(engines=(ENGINE,), decode=(small,))
    _, second = run(topology, workload((0.0, 12, 26), (0.0, 12, 26)))
    assert [(one.record.finish, one.record.num_output) for one in second.ended] == [("length", 26)] * 2
    again = sum(step.prefill_tokens for step in second.steps)
    preempted = sum(one.record.num_preemptions for one in second.ended)
    assert preempted > 0 and again > 12


def test_a_client_that_leaves_while_its_cache_travels_is_lost() -> None:
    load = Workload(about="", requests=[Offered(arrived_s=0.0, num_prompt=20, num_output=4, patience_s=2.0)])
    for machine_of, tokens in ((ENGINE, 0), (replace(ENGINE, link_bytes_per_s=1e6), 1)):
        _, second = run(Topology(engines=(machine_of,), decode=(machine_of,)), load)
        (one,) = second.ended
        assert one.record.finish == "abort" and one.record.finished_s == 2.0
        assert one.record.num_output == len(one.times_s) == tokens


def test_equal_prompts_stay_together_and_others_spread() -> None:
    """Three long beginnings: by prefix, each is computed at one engine."""
    requests = [Offered(arrived_s=9.0 * i, num_prompt=300, num_output=2, prefix=(i % 3, 10 + i % 3),
                        block_tokens=128) for i in range(16)]
    big: Machine = replace(ENGINE, capacity=replace(ENGINE.capacity, num_pages=400, max_step_tokens=512))
    load = Workload(about="", requests=requests)
    computed = {}
    for router in ("prefix:4", "round-robin"):
        meters = run(Topology(engines=(big,) * 4, router=router), load)
        computed[router] = sum(step.prefill_tokens for meter in meters for step in meter.steps)
    assert computed["prefix:4"] == 3 * 300 + 13 * 44 < computed["round-robin"] == 12 * 300 + 4 * 44


def test_leaps_change_nothing_in_a_split() -> None:
    """What is simulated step by step in the tests above comes out the same in leaps."""
    topology = Topology(engines=(ENGINE,) * 2, decode=(ENGINE,) * 2)
    leapt = [Meter(200) for _ in topology.machines]
    drive(topology, FCFS, workload(*MIXED), leapt)
    for one, other in zip(leapt, run(topology, workload(*MIXED)), strict=True):
        assert [(e.record, e.times_s.tolist()) for e in one.ended] == [
            (e.record, e.times_s.tolist()) for e in other.ended]
        assert one.num_steps == len(other.steps)


def test_cost_and_devices_are_those_of_all_engines() -> None:
    two = replace(ENGINE, num_devices=2, price_usd_per_hour=1.0)
    topology = Topology(engines=(ENGINE,), decode=(two, two))
    one = simulate_cluster(topology, FCFS, workload(*MIXED))
    assert one.goodput_per_device == pytest.approx(one.goodput / 5)
    assert one.good_per_usd == pytest.approx(one.num_good / (one.duration_s * 7.6 / 3600))
    assert topology.num_devices == 5 and topology.usd_per_hour == pytest.approx(3.6 + 4.0)
    assert topology.as_replicas().machines == topology.machines and not topology.as_replicas().decode
    assert Topology(engines=(ENGINE, replace(two, price_usd_per_hour=None))).usd_per_hour is None


@pytest.mark.parametrize("topology", [
    Topology(engines=(ENGINE,) * 3), Topology(engines=(ENGINE,), decode=(ENGINE,) * 2)])
def test_littles_law_holds_of_a_cluster(topology: Topology) -> None:
    """What schedulers count inside, and caches that travel, against arrivals and the records' times; also of
    clients who go away at the door, on the way and while they are answered. A request that stands between
    two engines is inside once."""
    load = workload(*MIXED)
    load = replace(load, requests=[replace(one, patience_s=(None, 1.0, 3.0, 6.0)[i % 4])
                                   for i, one in enumerate(load.requests)])
    meters = [Kept() for _ in topology.machines]
    law = drive(topology, FCFS, load, meters).little_law
    records = [one.record for meter in meters for one in meter.ended]
    assert {"abort", "length"} == {record.finish for record in records}
    assert law["arrival_rate"] * law["window_s"] == pytest.approx(len(records))
    spent_s = [record.finished_s - record.arrived_s for record in records]
    assert law["time_in_system_s"] == pytest.approx(sum(spent_s) / len(records))
    assert law["num_in_system"] > 1 and abs(law["difference"]) < 1e-6
