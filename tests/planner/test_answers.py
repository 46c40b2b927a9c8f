"""Protects what stands on plans: explanations, comparisons, remedies, claims and the search."""

import re
import time
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.planner.ask import Ask, Speculate
from ridgeline.planner.claims import Claim, check_claim, claim_text, parse_claim
from ridgeline.planner.compare import compare, compare_json, compare_text, knobs, remedy
from ridgeline.planner.explain import explain, explain_json, explain_text
from ridgeline.planner.pareto import pareto_svg, search_json, search_text
from ridgeline.planner.plan import plan
from ridgeline.planner.report import as_text
from ridgeline.planner.search import search
from ridgeline.planner.setup import Workshop
from ridgeline.planner.timing import estimates, timed

SHOP = Workshop()
BASE = Ask(model="llama-3-8b", gpu="h100", batch=16)
LARGE = Ask(model="llama-3-70b", gpu="h100", tp=4, batch=16)


def test_every_term_says_its_formula_source_and_error_and_lines_add_up_to_the_floor() -> None:
    found = plan(LARGE, SHOP)
    terms = {term.key: term for term in explain(found)}
    assert all(t.formula and t.source in ("config", "data sheet", "assumed") for t in terms.values())
    for phase, whole in (("decode", found.exact.tpot_s), ("prefill", found.exact.ttft_s)):
        lines = [t.value for key, t in terms.items() if key.startswith(f"{phase}.")]
        assert len(lines) > 6 and sum(lines) == pytest.approx(whole, rel=1e-9)
    assert {"cost_per_million_usd.estimate", "intensity_ceiling", "efficiency.each_s"} <= set(terms)
    assert terms["ttft_s.estimate"].band is None and terms["weights"].band == (0.0, 0.0)
    assert "error not measured" in explain_text(found) and len(explain_json(found)) == len(terms)


def test_what_stands_on_an_assumed_figure_of_a_device_says_so_and_bounds_nothing() -> None:
    found = plan(replace(BASE, gpu="epyc-9654", batch=1), SHOP)
    assert {t.source for t in explain(found)} == {"config", "assumed"} and "are assumed" in as_text(found)
    by_int8 = plan(replace(BASE, gpu="a10g", weights="int8", prompt=512, output=64), SHOP)
    plain = plan(replace(BASE, gpu="a10g", model="llama-3.2-1b"), SHOP)
    assert by_int8.setup.assumed == ("int8",) and plain.setup.assumed == ()
    assert any(t.source == "data sheet" for t in explain(plain))


def test_adapters_that_sequences_wear_are_read_and_multiplied_in_every_step() -> None:
    bare = plan(BASE, SHOP)
    one, many = (plan(replace(BASE, max_loras=n), SHOP) for n in (1, 64))
    each_s = one.memory.adapters / bare.setup.device.bytes_per_s
    assert one.exact.tpot_s - bare.exact.tpot_s == pytest.approx(each_s)
    assert many.exact.tpot_s - bare.exact.tpot_s == pytest.approx(64 * (1 - (63 / 64) ** 16) * each_s)
    assert one.estimate.ttft_s > bare.estimate.ttft_s and many.estimate.tpot_s > one.estimate.tpot_s
    assert any(t.key == "adapters_s.floor" and t.value == pytest.approx(each_s) for t in explain(one))


def test_a_model_of_states_alone_has_no_nominal_limit_of_memory() -> None:
    said = as_text(plan(replace(BASE, model="mamba2-2.7b"), SHOP))
    assert "without end)" in said and "recurrent states" in said


def test_knobs_are_ranked_and_tagged_with_the_sides_they_move() -> None:
    base = plan(replace(BASE, model="llama-2-7b"), SHOP)
    effects = {one.knob.name: one for one in compare(base, SHOP)}
    assert effects["fp8 KV cache"].sides == ("decode", "capacity") and effects["fp8 KV cache"].knob.quality
    assert effects["half of each prompt in the cache"].sides == ("prefill",)
    assert set(effects["GQA with 8 KV heads"].sides) >= {"decode", "capacity"}
    assert not effects["TP 2"].knob.quality and effects["TP 2"].tpot < 1
    gains = [one.gain for one in compare(base, SHOP) if one.feasible]
    assert gains == sorted(gains, reverse=True)
    assert "measure quality" in compare_text(tuple(effects.values()))
    assert {one["knob"] for one in compare_json(tuple(effects.values()))} == set(effects)
    assert "batch 32" in effects and all(k.ask != base.ask for k in knobs(base))


@pytest.mark.parametrize("ask", [
    replace(LARGE, tp=None), replace(BASE, batch=900), replace(BASE, batch=64, tpot_s=0.012),
    replace(BASE, batch=None, rate=40.0), replace(BASE, prompt=3000, batch=400, kv="fp8")])
def test_an_infeasible_plan_names_one_change_that_makes_it_feasible(ask: Ask) -> None:
    found = plan(ask, SHOP)
    name = remedy(found, SHOP)
    assert not found.feasible and name
    named = [k.ask for k in knobs(found) if k.name == name.removesuffix(" (measure quality)")]
    changed = named[0] if named else replace(ask, batch=int(name.split()[1]))
    assert plan(changed, SHOP).feasible


def test_knobs_of_a_batch_in_waves_keep_its_waves() -> None:
    effects = compare(plan(replace(BASE, arrivals="waves"), SHOP), SHOP)
    assert effects and all(one.plan.ask.arrivals == "waves" for one in effects)


def test_a_change_that_touches_nothing_else_is_named_before_another_device() -> None:
    assert "on " not in remedy(plan(replace(LARGE, tp=None), SHOP), SHOP)


def test_where_no_change_is_enough_one_is_named_with_the_batch_that_it_needs() -> None:
    ask = replace(BASE, batch=64, ttft_s=0.05, tpot_s=0.005)
    named = re.fullmatch(r"TP (\d+) and batch (\d+)", remedy(plan(ask, SHOP), SHOP))
    assert named is not None
    ways, batch = map(int, named.groups())
    assert plan(replace(ask, tp=ways, gpus=ways, batch=batch), SHOP).feasible
    assert not plan(replace(ask, tp=ways, gpus=ways), SHOP).feasible and not plan(
        replace(ask, batch=batch), SHOP).feasible
    assert "no one change" in as_text(plan(replace(ask, ttft_s=0.001), SHOP))


def test_a_claim_is_read_as_people_write_it() -> None:
    assert parse_claim("Llama-3-8B 300 tok/s on H100") == Claim(model="Llama-3-8B", gpu="H100", tok_s=300)
    assert parse_claim("mixtral-8x7b int4 9k tokens/sec on 2x H100, batch size 64") == Claim(
        model="mixtral-8x7b", gpu="H100", tok_s=9000, weights="int4", batch=64, gpus=2)
    assert parse_claim("Llama 3.1 8B: 1,200 tps on a100-80gb x4").gpus == 4
    with pytest.raises(ConfigError, match="cannot read the claim"):
        parse_claim("very fast on my laptop")


def test_a_claim_past_the_bandwidth_is_impossible_and_explained() -> None:
    """300 tok/s of Llama-3-8B are 134 % of an H100's bandwidth; 209 is the closed form's ceiling."""
    verdict = check_claim(parse_claim("Llama-3-8B 300 tok/s on H100"), SHOP)
    assert not verdict.possible
    assert verdict.implied_bytes_per_s / verdict.device_bytes_per_s == pytest.approx(1.34, abs=0.01)
    assert verdict.nominal_ceiling_tok_s == pytest.approx(209, rel=0.01)
    for part in ("quantization: fp8", "aggregate over a batch: 2", "several devices: 2"):
        assert any(part in one for one in verdict.explanations), part
    assert "NOT possible" in claim_text(verdict)
    usual = check_claim(parse_claim("Llama-3-8B 120 tok/s on H100"), SHOP)
    assert usual.possible and usual.explanations == () and 0.5 < usual.share_of_ceiling < 0.65
    assert not check_claim(parse_claim("llama-3-70b 20 tok/s on h100"), SHOP).possible  # it does not fit


@pytest.mark.parametrize("ask", [
    LARGE, replace(BASE, tp=2, pp=2), replace(BASE, speculate=Speculate(gamma=3, alpha=0.7, draft=0.1)),
    replace(BASE, weights="int4"), replace(BASE, disaggregate=True),
    replace(BASE, model="qwen3-30b-a3b", ep=4), replace(BASE, max_loras=4)])
def test_a_search_prices_batches_as_plans_do(ask: Ask) -> None:
    setup = SHOP.setup(ask)
    ttft_s, tpot_N, mixed_N = estimates(setup, [1, 3, 40])
    for rows, tpot_s, mixed_s in zip((1, 3, 40), tpot_N, mixed_N, strict=True):
        one = timed(setup, rows).estimate
        assert (ttft_s, tpot_s, mixed_s) == pytest.approx((one.ttft_s, one.tpot_s, one.mixed_s), rel=1e-12)


def test_the_search_finds_the_cheapest_that_meets_the_ask() -> None:
    ask = replace(LARGE, tp=None, batch=None, gpus=8, tpot_s=0.04, ttft_s=1.0, gpu="")
    found = search(ask, ("h100", "h200"), weights=(None, "fp8"), shop=SHOP)
    best = found.feasible[0]
    assert best.usd_per_million == min(x.usd_per_million for x in found.feasible)
    again = plan(replace(ask, gpu=best.gpu, gpus=None, tp=best.layout.tp, pp=best.layout.pp, kv=best.kv,
                         weights="fp8", batch=best.batch), SHOP)
    assert again.feasible and again.estimate.cost_per_million_usd == pytest.approx(best.usd_per_million)
    costs, speeds = zip(*((x.usd_per_million, x.user_tok_s) for x in found.front), strict=True)
    assert list(costs) == sorted(costs) and list(speeds) == sorted(speeds)
    beaten = [x for x in found.feasible if x.usd_per_million < costs[0]]
    assert not beaten and search_json(found)["num_feasible"] == len(found.feasible)
    assert ElementTree.fromstring(pareto_svg(found, "a <b>")).tag.endswith("svg")
    assert "nothing is both cheaper and faster" in search_text(found)


def test_a_rate_decides_the_replicas_and_too_few_devices_are_named() -> None:
    ask = replace(BASE, batch=None, rate=30.0, gpu="", tpot_s=0.05, gpus=8)
    found = search(ask, ("h100",), kvs=("bf16",), weights=(None,), shop=SHOP)
    best = found.feasible[0]
    assert best.output_tok_s >= 30 * 256 and best.num_devices == best.layout.num_devices <= 8
    assert best.usd_per_hour == min(x.usd_per_hour for x in found.feasible)
    none = search(replace(ask, rate=3000.0), ("h100",), kvs=("bf16",), weights=(None,), shop=SHOP)
    assert not none.feasible and none.nearest and "devices are needed" in none.why
    small = search(replace(ask, model="llama-3-70b", gpus=1), ("l4",), weights=(None,))
    assert small.why.startswith("nothing of")


def test_given_replicas_are_priced_and_named_where_they_are_too_few() -> None:
    ask = replace(BASE, batch=None, rate=30.0, gpu="", gpus=8, dp=4)
    found = search(ask, ("h100",), kvs=("bf16",), weights=(None,), shop=SHOP)
    assert found.feasible and {x.layout.dp for x in found.feasible} == {4}
    assert all(x.num_devices <= 8 and x.output_tok_s >= 30 * 256 for x in found.feasible)
    none = search(replace(ask, rate=900.0), ("h100",), kvs=("bf16",), weights=(None,), shop=SHOP)
    assert not none.feasible and "replicas are needed for the rate" in none.why
    assert "price" in search(ask, ("mi300x",), shop=SHOP).why


def test_ten_thousand_deployments_take_five_seconds() -> None:
    """Processor time, which other load stretches less than a clock's."""
    start = time.process_time()
    found = search(replace(LARGE, tp=None, batch=None, gpu=""), ("h100", "l40s"), shop=Workshop())
    taken = time.process_time() - start
    assert taken / found.num_tried * 10_000 < 5, (taken, found.num_tried)
