"""Scheduling to targets, for reuse and between tenants: what slo, reuse and fair promise beyond an order."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.base.errors import ConfigError
from ridgeline.schedule.overload import Mode, Overload
from ridgeline.schedule.policies.fair import OUTPUT, Fair
from ridgeline.schedule.policies.policy import LOOK, Needs, View
from ridgeline.schedule.policies.reuse import SOON, WINDOW, Reuse
from ridgeline.schedule.policies.slo import KEPT, LEAST, PROBE, READY, Cost, Slo, on_time, rate_of
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.request import Finish, Request
from ridgeline.schedule.speculate import Shape
from ridgeline.schedule.targets import Targets
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import Harness
from tests.schedule.test_policies import STEP, Engine, Job

# ---- slo


@settings(max_examples=30, deadline=None)
@given(jobs=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=6), start=st.integers(0, 3))
def test_as_many_as_possible_are_on_time(jobs: list[tuple[int, int]], start: int) -> None:
    """Against every subset, each done earliest deadline first."""
    work = [(float(due), float(seconds)) for due, seconds in sorted(jobs)]

    def fits(places: tuple[int, ...] | list[int]) -> bool:
        ends = np.cumsum([work[place][1] for place in places]) + start
        return all(end <= work[place][0] for end, place in zip(ends, places))

    most = max(size for size in range(len(work) + 1)
               if any(fits(places) for places in combinations(range(len(work)), size)))
    kept = on_time(work, float(start))
    assert fits(kept) and len(kept) == most


def price(step: Shape) -> float:
    """Weights are read in 5 ms whatever there is; a token takes 20 us of computing, a decode its context."""
    return max(5e-3, 2e-5 * int(step.count.sum())) + 1e-8 * int(step.start[step.count == 1].sum())


@settings(max_examples=10, deadline=None)
@given(contexts=st.lists(st.integers(0, 4000), max_size=40), need=st.floats(0, 45_000))
def test_a_step_takes_what_is_free_and_what_deadlines_need(contexts: list[int], need: float) -> None:
    """Against all sizes, one by one: the fewest tokens that keep the pace, no fewer than cost nothing."""
    starts = np.array(contexts, np.int64)
    cost = Cost(price, starts)

    def seconds(tokens: int) -> float:
        shape = Shape(start=np.append(starts, 0), num_sampled=len(contexts) + 1,
                      count=np.append(np.ones(len(contexts), np.int64), tokens))
        return price(shape)

    for tokens in (PROBE, 700, 2 * PROBE, 3000):
        assert cost.of(tokens) == pytest.approx(seconds(tokens))
    bare = seconds(2)
    free = max(tokens for tokens in range(1, 400) if seconds(tokens) <= bare)
    assert free - 1 <= cost.free <= free + 1
    pace = next((tokens for tokens in range(1, 4000) if tokens / seconds(tokens) >= need), None)
    found = cost.at_rate(need)
    assert found > 3990 if pace is None else abs(found - pace) <= max(2, 0.002 * pace)


def test_deadlines_are_kept_by_steps_below_the_token_target() -> None:
    """A stream at two thirds of what steps of TPOT can take in: all first tokens are in time, and no step
    with decodes lasts longer than TPOT."""
    def seconds(step: Shape) -> float:
        return 0.2 + 0.05 * int(step.count.sum())

    targets = Targets(ttft_s=20.0, tpot_s=1.0)
    engine = Engine(make_policy("slo", Needs(targets=targets, price=seconds)), rows=12)
    now, number, first_s = 0.0, 0, {}
    while now < 120:
        while number * 2.0 <= now:
            engine.add(Job(number=number, at=2 * number, prompt=14, output=3))
            number += 1
        counts = engine.step(now)
        step_s = 0.2 + 0.05 * sum(counts.values())
        assert len(counts) == 1 or step_s <= max(targets.tpot_s, 0.2 + 0.05 * (LEAST + len(counts)))
        now += step_s if counts else 0.5
        for name in counts:
            first_s.setdefault(name, now)
    late = [name for name, at in first_s.items() if at - 2 * name > targets.ttft_s]
    assert len(first_s) > 45 and not late and KEPT < 1


def test_nobody_who_runs_stands_in_line() -> None:
    """Two fill all rows and the pool; when one gives way in a step that had nobody to line up, the line is
    not the last one."""
    engine = Engine(make_policy("slo", Needs(targets=Targets(ttft_s=1.0, tpot_s=1.0), price=price)), rows=2,
                    num_pages=14)
    for number in range(2):
        engine.add(Job(number=number, at=0, prompt=8, output=36))
    for now in range(100):
        engine.step(float(now))
    assert sorted(engine.ended) == [0, 1] and engine.scheduler.load().num_preemptions


def test_a_target_below_the_floor_says_the_floor() -> None:
    with pytest.raises(ConfigError, match=r"--tpot 1ms is below the floor: .* 5 ms"):
        make_policy("slo", Needs(targets=Targets(ttft_s=1.0, tpot_s=1e-3), price=price))
    with pytest.raises(ConfigError, match="give both --ttft and --tpot"):
        make_policy("slo", Needs(price=price))


def test_a_sooner_class_keeps_its_deadlines_where_a_later_one_cannot() -> None:
    """Every other request is of a sooner class, in a stream of twice what steps can take in: the sooner ones
    are all in time, and the others all end when the stream does."""
    def seconds(step: Shape) -> float:
        return 0.2 + 0.05 * int(step.count.sum())

    engine = Engine(make_policy("slo", Needs(targets=Targets(ttft_s=8.0, tpot_s=1.0), price=seconds)), rows=3)
    now, number, first_s, done = 0.0, 0, {}, Counter[int]()
    while now < 300 and (number < 50 or len(engine.ended) < 50):
        while number < 50 and number * 0.6 <= now:
            engine.add(Job(number=number, at=number * 0.6, prompt=14, output=3, priority=number % 2))
            number += 1
        counts = engine.step(now)
        now += 0.2 + 0.05 * sum(counts.values()) if counts else 0.5
        for name, count in counts.items():
            done[name] += count
            if done[name] >= 14:
                first_s.setdefault(name, now)
    waits = [first_s[name] - 0.6 * name for name in range(50)]
    assert max(waits[::2]) < 8.0 < sorted(waits[1::2])[12] and sorted(engine.ended) == list(range(50))


def test_a_sooner_class_takes_the_row_of_a_later_one() -> None:
    engine = Engine(make_policy("slo", Needs(targets=Targets(ttft_s=1.0, tpot_s=1.0), price=price)), rows=1)
    ran = []
    for now in range(30):
        if now < 2:
            engine.add(Job(number=now, at=now, prompt=8, output=6, priority=-now))
        ran += engine.step(float(now))
    assert engine.ended == [1, 0] and ran[:3] == [0, 1, 1] and engine.scheduler.load().num_preemptions == 1


def test_under_overload_the_later_class_is_shed() -> None:
    """Half of a burst is of each class, and about half can be in time."""
    harness = Harness(num_rows=4, max_step_tokens=16, policy="slo", num_pages=80, overload=Overload(
        mode=Mode.SHED, targets=Targets(ttft_s=9.0), price=lambda step: int(step.count.sum()) / 40,
        block_tokens=4, passes=Slo.passes))
    for number in range(16):
        harness.add(str(number), [5 + number] * 14, SamplingParams(seed=1, max_tokens=2, ignore_eos=True),
                    priority=(number < 8) - 5)
    harness.run()
    shed = {name for name in map(str, range(16)) if harness.finish_of(name) is Finish.SHED}
    assert shed and shed < set(map(str, range(8)))


def test_the_pace_meets_every_deadline() -> None:
    assert rate_of([], 0.0) == 0.0
    assert rate_of([(0, 2.0, 80), (0, 1.0, 80)], 0.0) == pytest.approx(80 / READY)
    assert rate_of([(1, 1.0, 80), (0, np.inf, 80)], 0.0) == pytest.approx(160 / READY)  # behind a late one


# ---- reuse


def test_prompts_that_begin_alike_go_together() -> None:
    """Seven share a long beginning: it is computed once, and one without it starts meanwhile. Chunks, first
    come first, compute its end for each that starts beside the first."""
    computed = {}
    for policy in ("chunked:100", "reuse"):
        harness = Harness(num_pages=600, num_rows=8, max_step_tokens=100, max_model_len=256, policy=policy)
        shared = [1 + i % 37 for i in range(200)]
        for index in range(8):
            prompt = [39, 5, 7] if index == 4 else [*shared, 2 + index]
            harness.add(str(index), prompt, SamplingParams(seed=1, max_tokens=4, ignore_eos=True))
        harness.run()
        computed[policy] = sum(plan.num_tokens - plan.num_decodes for plan in harness.executor.plans)
        starts = [start.request for plan in harness.executor.plans for start in plan.row_starts]
        assert policy != "reuse" or starts.index(4) == 1
    assert computed["reuse"] < 240 < computed["chunked:100"]


def reuse_rule(view: View, cached: Callable[[Request], int]) -> list[int]:
    """Who is tried, and in which order, by the rule as it is written, a token at a time."""
    def alike(a: Request, b: Request) -> int:
        pairs = list(zip(a.prompt.tolist(), b.prompt.tolist()))
        return next((i for i, (one, other) in enumerate(pairs) if one != other), len(pairs))

    waiting = list(view.queue)
    prompting = [(one, int(view.rows.computed[one.row])) for one in view.rows.request
                 if one is not None and view.rows.computed[one.row] < one.num_prompt]
    ready = [one for one in waiting[:WINDOW] if not any(
        one.cache_salt == other.cache_salt and alike(one, other) >= computed + SOON
        for other, computed in prompting)]
    place = {one.number: (-cached(one), i) for i, one in enumerate(ready)}
    first = sorted(place, key=lambda number: place[number])
    return [*first, *(one.number for one in waiting[WINDOW:WINDOW + view.rows.num_free + LOOK])]


@pytest.mark.parametrize("seed", range(3))
def test_reuse_gives_the_order_that_its_rule_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Talks that begin alike, told apart by salt, in a cache that holds all: what is found changes when
    somebody starts or leaves, and by what a running prompt adds, which is less than it is worth to wait
    for."""
    draw, line, seen = Random(seed), Reuse.line, Counter[bool]()

    def watched(self: Reuse, view: View, now: float) -> list[Request]:
        found = line(self, view, now)
        numbers = [one.number for one in found]
        assert numbers == reuse_rule(view, lambda one: self._cached[one.number])
        assert all(0 <= view.cached(one) - self._cached[one.number] < SOON for one in found
                   if one.number in self._cached)
        seen[numbers != sorted(numbers)] += 1
        return found

    monkeypatch.setattr(Reuse, "line", watched)
    harness = Harness(num_pages=4000, num_rows=3, max_step_tokens=60, max_model_len=400, policy="reuse",
                      check=False)
    talks = [[draw.randrange(1, 38) for _ in range(300)] for _ in range(3)]
    for number in range(24):
        prompt = [*draw.choice(talks)[:draw.choice((0, 30, 90, 200, 300))], 1 + number, 2]
        harness.add(str(number), prompt, SamplingParams(seed=1, max_tokens=draw.randint(1, 6)),
                    salt=draw.choice(("", "", "other")))
        for _ in range(draw.choice((0, 0, 2))):
            harness.step()
    harness.run()
    assert seen[True] > 5, "the order was never the queue's"


# ---- fair


@settings(max_examples=4, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=2, max_size=2),
       rows=st.integers(1, 4))
def test_backlogged_tenants_get_alike(sizes: list[tuple[int, int]], rows: int) -> None:
    """Two tenants that always have requests waiting: what they are served differs by 2 U at the most, and by
    what ageing let pass."""
    policy = Fair()
    engine, number = Engine(policy, rows), 0
    for step in range(90):
        while engine.scheduler.load().waiting < 8:
            prompt, output = sizes[number % 2]
            engine.add(Job(number=number, at=step, prompt=prompt, output=output, tenant="ab"[number % 2]))
            number += 1
        engine.step(step)
    unit = max(max(prompt for prompt, _ in sizes), OUTPUT * rows * max(output for _, output in sizes))
    aged = max(prompt + OUTPUT * output for prompt, output in sizes)
    assert min(policy.counters.values()) > STEP
    assert abs(policy.counters["a"] - policy.counters["b"]) <= 2 * unit + aged
