"""Protects skipping ahead: a simulation that leaps over steps in which nothing changes gives what one that
takes each step gives, to the last bit."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ridgeline.base.trace import Record, RequestRecord, StepRecord
from ridgeline.schedule.course import Leap
from ridgeline.schedule.policies.table import POLICIES
from ridgeline.schedule.request import NewRequest, Output
from ridgeline.schedule.targets import Targets
from ridgeline.sim.node import Machine, Node, Serving, host_traffic
from ridgeline.sim.outcome import Meter
from ridgeline.sim.run import Clients
from ridgeline.spec.cache import Paged, State, Window, plan_layout
from ridgeline.workload.offered import Offered, Workload
from tests.sim.helpers_sim import machine, workload

LAYOUTS = {
    "paged": [(Paged(bytes_per_entry=64),)] * 2,
    "windows": [(Paged(bytes_per_entry=64),), (Window(bytes_per_token=64, window_tokens=9),)],
    "states": [(Paged(bytes_per_entry=64),), (State(num_bytes=200),)],
}
_SETTINGS = {"chunked": "chunked:16"}


class Steps:
    """A trace that is told of every step."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.steps: list[StepRecord] = []

    def add(self, record: Record) -> None:
        self.meter.add(record)
        if not isinstance(record, RequestRecord):
            self.steps.append(record)

    def close(self) -> None: ...


def mixed(seed: int, num_requests: int, *, gap_s: float = 25.0) -> Workload:
    """Sparse and dense stretches, long prompts, shared prefixes, and clients that lose patience."""
    draw, now, requests = random.Random(seed), 0.0, []
    for _ in range(num_requests):
        now += draw.choice([0.0, 0.0, draw.expovariate(1 / gap_s)])
        shared = draw.random() < 0.3
        requests.append(Offered(
            arrived_s=now, num_prompt=draw.randint(1, 90), num_output=draw.randint(1, 60),
            prefix=(1, 2, draw.randint(3, 4)) if shared else (), block_tokens=8,
            patience_s=draw.choice([None, None, draw.uniform(1, 60)]), priority=draw.randint(0, 2)))
    return Workload(requests=requests, about="mixed")


class Heard:
    """A front that keeps what clients hear of first tokens and ends."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.news: list[tuple[str, int, Mapping[str, float], Mapping[str, float | int | str]]] = []

    def add(self, new: NewRequest) -> None:
        self._node.add(new)

    def abort(self, request_id: str) -> None:
        self._node.abort(request_id)

    def next_event_at(self) -> float | None:
        return self._node.next_event_at()

    def advance(self, until_s: float, quiet_s: float = 0.0) -> list[Output]:
        news = self._node.advance(until_s, quiet_s)
        for one in (one for one in news if one.times_s):
            account = {name: value for name, value in one.account.items() if name != "reuse_limit"}
            limit = str(one.account.get("reuse_limit", "")).split()[:1]  # evicted, some seconds ago
            self.news.append((one.id, one.num_output, one.times_s, {**account, "reuse_limit": str(limit)}))
        return news


def both_ways(where: Machine, serving: Serving, load: Workload) -> tuple[Meter, Meter, list[StepRecord]]:
    leapt, stepped = Meter(where.capacity.num_pages), Meter(where.capacity.num_pages)
    every, found = Steps(stepped), []
    for trace in (leapt, every):
        node = Node(where, serving, trace)
        heard = Heard(node)
        Clients(heard, load, 1000).run()
        node.loop.check()
        heard.news.sort(key=lambda one: one[:2])
        found.append((heard.news, node.manager.stats, host_traffic([node]), node.loop.little_law(),
                      node.loop.progress()))
    assert found[0] == found[1]
    return leapt, stepped, every.steps


def assert_equal(leapt: Meter, stepped: Meter) -> None:
    assert [one.record for one in leapt.ended] == [one.record for one in stepped.ended]
    assert [one.times_s.tolist() for one in leapt.ended] == [one.times_s.tolist() for one in stepped.ended]
    for name in ("num_steps", "num_preemptions", "most_pages", "most_residents", "num_rows", "num_held"):
        assert getattr(leapt, name) == getattr(stepped, name), name
    for name in ("busy_s", "prefill_s", "page_s", "resident_s", "row_s"):
        assert getattr(leapt, name) == pytest.approx(getattr(stepped, name), rel=1e-12), name


@pytest.mark.parametrize(("kind", "depth"), [("paged", 1), ("paged", 2), ("windows", 3), ("states", 2)])
def test_leaping_is_stepping(kind: str, depth: int) -> None:
    base = machine(depth=depth, max_step_tokens=24)
    layout = plan_layout(LAYOUTS[kind], block_tokens=4)
    for num_pages, gap_s in ((400, 25.0), (36, 6.0)):  # room for all, and preemptions
        where = replace(base, capacity=replace(base.capacity, layout=layout, num_pages=num_pages))
        leapt, stepped, steps = both_ways(where, Serving(), mixed(depth, 8, gap_s=gap_s))
        assert_equal(leapt, stepped)
        assert len(steps) == stepped.num_steps
        assert num_pages > 36 or stepped.num_preemptions or kind != "paged"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_leaping_is_stepping_under_every_policy(policy: str) -> None:
    serving = Serving(policy=_SETTINGS.get(policy, policy), targets=Targets(ttft_s=4.0, tpot_s=1.2))
    assert_equal(*both_ways(machine(num_pages=300), serving, mixed(7, 7))[:2])


def test_most_steps_of_a_quiet_engine_are_leapt_over() -> None:
    told: list[Record] = []

    class Told(Meter):
        def add(self, record: Record) -> None:
            told.append(record)
            super().add(record)

    meter = Told(400)
    load = workload(*[(100.0 * i, 5, 90) for i in range(5)])
    Clients(Node(machine(num_pages=400), Serving(), meter), load, 1000).run()
    assert meter.num_steps == 5 * 90 and sum(isinstance(one, StepRecord) for one in told) <= 5 * 5


def test_a_leap_goes_on_to_the_end_of_the_step_in_which_somebody_comes() -> None:
    """So that of what comes beside a long answer the steps with its prompt alone are taken one by one."""
    taken: list[StepRecord] = []

    class Told(Meter):
        def add(self, record: Record) -> None:
            taken.extend([record] if isinstance(record, StepRecord) else [])
            super().add(record)

    load = workload((0.0, 5, 300), *[(20.3 + 20 * i, 5, 3) for i in range(10)])
    where = machine(num_pages=400)
    node = Node(where, Serving(), Told(400))
    Clients(node, load, 1000).run()
    assert len(taken) <= 1 and len(load.requests) == 11
    assert_equal(*both_ways(where, Serving(), load)[:2])


def test_a_leap_goes_over_ends_and_past_those_who_wait_for_a_row() -> None:
    """Three requests that run together, and a fourth that finds no row: a leap to its arrival, one over its
    wait, and one from there to the end."""
    leaps: list[Leap] = []

    class Leapt(Meter):
        def leapt(self, leap: Leap) -> None:
            leaps.append(leap)
            super().leapt(leap)

    load = workload((0.0, 5, 20), (0.0, 5, 70), (0.0, 5, 90), (40.0, 5, 80), (40.0, 5, 30))
    where = machine(num_pages=400, num_rows=3)
    node = Node(where, Serving(), Leapt(400))
    Clients(node, load, 1000).run()
    ends = [sum(one.finish is not None for one in leap.news) for leap in leaps]
    assert sum(ends) >= 4 and 0 in ends
    assert sum(leap.num_steps for leap in leaps) > 0.9 * node.loop.progress()
    assert_equal(*both_ways(where, Serving(), load)[:2])


def check_random(seed: int) -> None:
    """Ends within a leap, crowds for few rows, prompts in chunks, few pages, clients that leave."""
    draw = random.Random(seed)
    policy, kind = draw.choice(sorted(POLICIES)), draw.choice(sorted(LAYOUTS))
    base = machine(depth=draw.randint(1, 3), num_rows=draw.randint(1, 6),
                   max_step_tokens=draw.choice((8, 24, 200)))
    where = replace(base, capacity=replace(
        base.capacity, layout=plan_layout(LAYOUTS[kind], block_tokens=4),
        num_pages=draw.choice((40, 90, 400))), page_s=draw.choice((0.001, 0.05)))
    if draw.random() < 0.3:  # so that many wait for pages
        where = replace(where, capacity=replace(where.capacity, num_rows=12, num_pages=40,
                                                max_step_tokens=200))
    serving = Serving(policy=_SETTINGS.get(policy, policy), targets=Targets(ttft_s=4.0, tpot_s=1.5),
                      kv=draw.choice(("paged", "paged", "contiguous")),
                      prefix_caching=draw.random() < 0.7)
    if serving.kv == "paged":  # with and without memory of the host behind it
        where = replace(where, capacity=replace(where.capacity, num_host_pages=draw.choice((0, 10, 200))))
    assert_equal(*both_ways(where, serving, mixed(seed, 10, gap_s=draw.choice((2.0, 10.0, 40.0))))[:2])


@settings(max_examples=10, deadline=None, derandomize=True, phases=[Phase.generate])
@given(seed=st.integers(0, 10**9))
def test_leaping_is_stepping_whatever_is_served(seed: int) -> None:
    check_random(seed)


@pytest.mark.soak
@settings(max_examples=500, deadline=None, phases=[Phase.generate])
@given(seed=st.integers(0, 10**9))
def test_leaping_is_stepping_whatever_is_served_at_length(seed: int) -> None:
    check_random(seed)
