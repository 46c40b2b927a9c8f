"""Protects skipping ahead: a simulation that leaps over steps in which nothing changes gives what one that
takes each step gives, to the last bit."""

import random
from dataclasses import replace

import pytest

from ridgeline.base.trace import Record, RequestRecord, StepRecord
from ridgeline.schedule.policies.table import POLICIES
from ridgeline.schedule.targets import Targets
from ridgeline.sim.node import Machine, Node, Serving
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


def both_ways(where: Machine, serving: Serving, load: Workload) -> tuple[Meter, Meter, list[StepRecord]]:
    leapt, stepped = Meter(where.capacity.num_pages), Meter(where.capacity.num_pages)
    every = Steps(stepped)
    for trace in (leapt, every):
        node = Node(where, serving, trace)
        Clients(node, load, 1000).run()
        node.loop.check()
    return leapt, stepped, every.steps


def assert_equal(leapt: Meter, stepped: Meter) -> None:
    assert [one.record for one in leapt.ended] == [one.record for one in stepped.ended]
    assert [one.times_s.tolist() for one in leapt.ended] == [one.times_s.tolist() for one in stepped.ended]
    for name in ("num_steps", "num_preemptions", "most_pages", "num_rows", "num_held"):
        assert getattr(leapt, name) == getattr(stepped, name), name
    for name in ("busy_s", "prefill_s", "page_s"):
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
