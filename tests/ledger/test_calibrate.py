"""Estimates of steps and the fit of their factors: never below a floor, and the fit finds what made its
points without leaving its ranges."""

from itertools import pairwise

import numpy as np
import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.calibrate import OWN_RANGES, RANGES, Point, Points, calibrate_steps, fit, likely, waking
from ridgeline.ledger.deployment import Deployment, Rates
from ridgeline.ledger.efficiency import FITTED, Efficiency
from ridgeline.ledger.layout import Layout, cut, stages
from ridgeline.ledger.price import Price
from ridgeline.ledger.served import Load, served
from ridgeline.ledger.sums import Rows
from ridgeline.ledger.work import Product, Work, Worker, added_s, alone, lines_of, stack, step_s
from ridgeline.spec.hardware import hardware
from ridgeline.spec.quant import WeightPlan
from tests.ledger.shapes import decodes, shape, uniform

DEVICE = hardware("h200")
PERFECT = Efficiency(bandwidth=1.0, experts=1.0, cache=1.0, prefill=1.0, experts_prefill=1.0, attention=1.0,
                     collective_s=0.0, hop_s=0.0)


def worker(name: str) -> Worker:
    spec = shape(name)
    return alone(spec, uniform(spec), DEVICE, Product(flops_per_s=DEVICE.rate("bfloat16")))


def test_an_estimate_with_perfect_factors_is_the_floor_and_no_other_is_below_it() -> None:
    price = Price(uniform(shape("llama-3.1-8b")), DEVICE, flops_per_s=DEVICE.rate("bfloat16"))
    work = worker("llama-3.1-8b")([Rows(rows=16, start=999, count=1)])
    floor_s = price(decodes(16, 1000))
    assert step_s(work, PERFECT) == pytest.approx(floor_s)
    for eff in (Efficiency(), likely(), likely(OWN_RANGES)):
        assert step_s(work, eff) >= floor_s


def test_stacked_steps_are_priced_as_one_by_one() -> None:
    dense, routed = worker("qwen3-0.6b"), worker("qwen3-30b-a3b")
    works = [dense([Rows(rows=4, start=500, count=1)]), routed([Rows(rows=64, start=100, count=1)])]
    eff = likely()
    assert step_s(stack(works), eff) == pytest.approx([step_s(w, eff) for w in works])
    assert added_s(stack(works), eff) == pytest.approx([added_s(w, eff) for w in works])


def test_a_plan_s_estimate_of_a_step_is_the_one_that_is_fitted() -> None:
    spec, layout, device = shape("mixtral-8x7b"), Layout(tp=2), hardware("h100")
    eff = likely().having({"skew": 0.0})
    held = stages(cut(spec, layout), weight_bytes=WeightPlan.uniform("bfloat16").num_bytes,
                  cache_element_bytes=2)
    rate = device.rate("bfloat16")
    rows = Rows(rows=32, start=2000, count=1)
    plan = Deployment(of_stages=lines_of(held, layout), device=device, rates=Rates(packed=rate, plain=rate),
                      efficiency=eff)
    work = Worker(held, layout, device, lambda line: Product(flops_per_s=rate))([rows])
    assert plan.decode([rows]).estimate_s == pytest.approx(float(step_s(work, eff)))


def test_more_users_wait_longer_and_one_user_waits_for_nobody() -> None:
    work, eff = worker("llama-3.1-8b"), likely()
    prompt = work([Rows(rows=1, start=0, count=2048)])
    seen = [served(work([Rows(rows=n, start=2300, count=1)]), prompt, Load(users=n, output=512), eff)
            for n in (1, 16, 128)]
    assert seen[0][0] == pytest.approx(step_s(work([Rows(rows=1, start=2300, count=1)]), eff), rel=0.02)
    assert all(a[i] < b[i] for a, b in pairwise(seen) for i in (0, 1))


def test_the_fit_finds_the_factors_of_its_points_and_keeps_to_their_ranges() -> None:
    truth = likely(OWN_RANGES).having({"bandwidth": 0.93, "cache": 0.8, "launch_s": 2e-6, "step_s": 3e-4})
    points = []
    for name in ("qwen3-0.6b", "mistral-7b"):
        work = worker(name)
        for rows in (1, 32):
            for context in (500, 4000):
                step = work([Rows(rows=rows, start=context, count=1)])
                points.append(Point.of_step(step, float(step_s(step, truth))))
    found = fit(Points(points), pull=1e-4, ranges=OWN_RANGES, cap=np.inf)
    assert np.abs(Points(points).errors(found)).max() < 0.01
    assert found.bandwidth == pytest.approx(0.93, rel=0.03)
    assert found.source("bandwidth") == FITTED and found.source("encoder") == "assumed"
    slow = [Point.of_step(p.decode[0], 50 * p.seconds) for p in points]
    wild = fit(Points(slow), ranges=RANGES)
    assert all(one.low * 0.999 <= getattr(wild, name) <= one.high * 1.001 for name, one in RANGES.items())


def test_a_calibration_knows_steps_between_its_levels_and_models_that_it_was_not_fitted_on() -> None:
    """The factors depend on the rows; llama-3.1-8b at other batches and contexts is judged."""
    def truth(rows: float) -> Efficiency:
        return likely(OWN_RANGES).having({"bandwidth": 0.95 - 0.02 * np.log2(rows) / 7, "cache": 0.7,
                                          "launch_s": 1e-6 * (2 + 0.5 * np.log2(rows)), "step_s": 1e-4})
    steps: dict[int, list[Point]] = {}
    for rows in (1, 16, 128):
        for name in ("qwen3-0.6b", "mistral-7b"):
            for context in (500, 3000):
                step = worker(name)([Rows(rows=rows, start=context, count=1)])
                steps.setdefault(rows, []).append(Point.of_step(step, float(step_s(step, truth(rows)))))
    calibration = calibrate_steps(steps, steps)
    assert calibration.error < 0.01
    judged = worker("llama-3.1-8b")
    for rows in (1, 8, 32, 128):
        step = judged([Rows(rows=rows, start=8000, count=1)])
        found_s = step_s(step, calibration.decodes.at(rows))
        assert found_s == pytest.approx(step_s(step, truth(rows)), rel=0.03)


def test_what_a_pause_costs_is_a_share_of_short_steps_and_no_more_than_so_much_of_long_ones() -> None:
    woken = [(busy, busy + min(0.3 * busy, 0.03)) for busy in (0.02, 0.05, 0.2, 0.4, 0.9)]
    found = waking([*woken, (0.1, 0.4)])  # one was disturbed
    assert found.share == pytest.approx(0.3) and found.most_s == pytest.approx(0.03)
    assert [found(busy) for busy, _ in woken] == pytest.approx([after - busy for busy, after in woken])
    assert waking([])(1.0) == waking([(0.2, 0.19)])(1.0) == 0.0


def test_no_points_are_no_calibration() -> None:
    with pytest.raises(ConfigError, match="measured points"):
        Points([])


def test_narrow_products_packed_weights_and_all_reduces_cost_what_their_factors_say() -> None:
    """FP8 products keep a share of their doubled rate, weights that are unpacked one of the bandwidth, and an
    all-reduce goes directly while that takes less than the further hops of a ring."""
    spec, layout, rows = shape("llama-3.1-8b"), Layout(tp=8), Rows(rows=1, start=0, count=4096)
    held = stages(cut(spec, layout), weight_bytes=WeightPlan.uniform("bfloat16").num_bytes,
                  cache_element_bytes=2)

    def work(product: Product, part: Rows = rows) -> Work:
        return Worker(held, layout, DEVICE, lambda line: product)([part])

    narrow = work(Product(flops_per_s=DEVICE.rate("float8_e4m3fn")))
    assert added_s(narrow, PERFECT.having({"narrow": 0.8})) - narrow.sent_s == pytest.approx(
        narrow.compute_L.sum() / 0.8)
    one = Rows(rows=1, start=0, count=1)
    packed = work(Product(flops_per_s=DEVICE.rate("bfloat16"), unpacked=2.0), one)
    assert step_s(packed, PERFECT.having({"unpack": 0.9})) - packed.sent_s == pytest.approx(
        packed.memory_L.sum() / 0.81)
    for part, direct in ((one, True), (rows, False)):
        step = work(Product(flops_per_s=DEVICE.rate("bfloat16")), part)
        further_s = step.num_hops * 1e-5
        longer_s = step_s(step, PERFECT.having({"hop_s": 1e-5})) - step_s(step, PERFECT)
        assert longer_s == pytest.approx(step.direct_s if direct else further_s)
        assert (step.direct_s < further_s) is direct
