"""Protects the labs: their defaults give the numbers that public sources state (by the ids of
tests/seed_numbers), every control matters, wrong values are refused by name, and no state within the ranges
gives a page something that JSON cannot say."""

import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.base.errors import ConfigError
from ridgeline.planner.ask import WEIGHTS, Ask
from ridgeline.planner.lab import Control, Lab, Result, Value
from ridgeline.planner.labs.table import LABS
from ridgeline.planner.plan import plan

BY_KEY = {lab.key: lab for lab in LABS}
EVERY_LAB = pytest.mark.parametrize("lab", LABS, ids=list(BY_KEY))
# the schedulers' page runs a scheduler; all its corners are for `make soak`
LIGHT_FIRST = pytest.mark.parametrize("lab", [
    pytest.param(lab, id=lab.key, marks=[pytest.mark.soak] * (lab.key == "schedulers")) for lab in LABS])


def numbers(lab: str, **values: Value) -> dict[str, Value]:
    """By key; of a key with two readings the first, which is the nominal one."""
    found = BY_KEY[lab].compute(BY_KEY[lab].state(values))
    return {number.key: number.value for number in reversed(found.numbers)}


def seed(identity: str, part: int = 0) -> tuple[float, float]:
    """(value, relative tolerance) of a row, or of one of its several values."""
    path = Path(__file__).parents[1] / "seed_numbers" / "seed_numbers.csv"
    with path.open(newline="", encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["id"] == identity)
    return float(row["value"].split("|")[part]), float(row["rel_tol"])


STATED: tuple[tuple[str, dict[str, Value], str, str, int], ...] = (
    ("kv-cache", {}, "kv_per_token", "S19", 0), ("kv-cache", {}, "max_concurrency", "S97", 0),
    ("kv-cache", {}, "max_concurrency_workspace", "S39", 0),
    ("kv-cache", {"cache": "fp8"}, "max_concurrency_workspace", "S72", 0),
    ("serving", {}, "ttft", "S99", 0), ("serving", {}, "tpot", "S99", 1),
    ("batching", {}, "b_star", "S03", 0), ("batching", {}, "b_cross", "S35", 1),
    ("batching", {}, "b_max", "S39", 0), ("batching", {}, "intensity", "S98", 0),
    ("batching", {}, "intensity_ceiling", "S36", 1), ("batching", {}, "ceiling_share", "S37", 1),
    ("batching", {}, "throughput_ceiling", "S38", 1), ("batching", {"cache": "fp8"}, "b_max", "S72", 0),
    ("image", {}, "patch_tokens", "S48", 0), ("image", {}, "visual_tokens", "S48", 1),
    ("image", {}, "preprocess", "S83", 0), ("image", {}, "encoder", "S50", 0),
    ("image", {}, "prefill", "S51", 0), ("image", {}, "ttft", "S52", 0), ("image", {}, "ttft_text", "S62", 0),
    ("image", {}, "conversations", "S54", 0), ("image", {"images": 4}, "conversations", "S54", 1),
    ("image", {}, "text_ratio", "S81", 0), ("image", {"pooling": "1"}, "prompt_tokens", "S84", 0),
    ("image", {"pooling": "1", "tiles": 25}, "visual_tokens", "S85", 0),
    ("redundancy", {"step": 10}, "without", "S15", 0), ("redundancy", {"step": 10}, "with", "S16", 0),
    ("redundancy", {"step": 10}, "ratio", "S17", 0),
    ("m-dimension", {}, "intensity", "S01", 0),
    ("m-dimension", {"step": 8}, "intensity", "S02", 0), ("ledger", {}, "parity", "S96", 0),
    ("kv-context", {"model": "llama-2-7b", "step": 7}, "against_weights", "S66", 0),
    ("heads", {"step": 3}, "intensity", "S25", 1), ("heads", {"step": 6}, "intensity", "S25", 3),
    ("ledger", {}, "crossover_tokens", "S30", 0), ("ledger", {}, "crossover", "S68", 0),
    ("ledger", {"model": "llama-2-7b"}, "crossover", "S68", 1), ("ledger", {}, "prompt_logits", "S29", 0),
    ("wall", {}, "empty_step", "S32", 0), ("wall", {}, "empty_tok_s", "S33", 0),
    ("wall", {}, "peak_share", "S70", 0), ("wall", {"context": 131072}, "slower", "S69", 0),
    ("wall", {"weights": "int4"}, "empty_step", "S41", 0),
    ("wall", {"weights": "fp8"}, "empty_step", "S73", 0),
    ("bending", {}, "ceiling", "S36", 1), ("bending", {}, "b_cross", "S35", 1),
    ("quantization", {}, "prefill", "S08", 0), ("quantization", {}, "decode", "S12", 0),
    ("quantization", {"step": 5}, "residents", "S72", 0), ("quantization", {"step": 2}, "b_star", "S74", 0),
    ("speculation", {}, "tokens", "S42", 0), ("speculation", {}, "gain", "S43", 0),
    ("speculation", {}, "rows", "S44", 0), ("speculation", {}, "closing", "S78", 0),
    ("speculation", {}, "best", "S79", 0), ("speculation", {"draft_cost": 0.2}, "best", "S79", 2),
    ("tensor-parallel", {"step": 4}, "step", "S45", 3), ("tensor-parallel", {"step": 3}, "speedup", "S46", 2),
    ("tensor-parallel", {"step": 2}, "collectives", "S76", 0),
    ("tensor-parallel", {"step": 2}, "payload", "S75", 0),
    ("tensor-parallel", {"step": 5}, "copies", "S77", 0),
    ("schedulers", {}, "static", "S56", 0), ("schedulers", {"step": 2}, "gap", "S57", 0),
    ("photograph", {"step": 9}, "elapsed", "S52", 0), ("photograph", {"step": 5}, "flops", "S49", 0),
    ("experts", {"batch": 1}, "distinct", "S47", 0), ("experts", {}, "distinct", "S47", 1),
    ("experts", {"batch": 16}, "distinct", "S47", 2),
    ("experts", {"batch": 1, "drafts": 4}, "distinct", "S95", 0),
)


@pytest.mark.parametrize(("lab", "values", "key", "identity", "part"), STATED)
def test_stated_numbers(lab: str, values: dict[str, Value], key: str, identity: str, part: int) -> None:
    value, tolerance = seed(identity, part)
    assert numbers(lab, **values)[key] == pytest.approx(value, rel=tolerance + 1e-9)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("device", "gpu"), [("h100-sxm", "h100"), ("rtx-3090", "rtx-3090")])
def test_the_serving_lab_and_a_plan_take_formats_alike(weights: str, device: str, gpu: str) -> None:
    """The same arithmetic, native where the device has it, and the same exact outputs key by key."""
    lab = BY_KEY["serving"]
    found = lab.compute(lab.state({"weights": weights, "device": device}))
    exact = {number.key: number.value for number in found.numbers if number.reading == "exact"}
    asked = plan(Ask(model="llama-3-8b", gpu=gpu, weights=weights, prompt=2048, output=256, batch=16)).exact
    told = {"ttft": asked.ttft_s, "tpot": asked.tpot_s, "e2e": asked.e2e_s, "intensity": asked.intensity,
            "kv_share": asked.kv_share_of_step, "output_tok_s": asked.output_tok_s,
            "user_tok_s": asked.per_user_tok_s}
    assert {key: exact[key] for key in told} == pytest.approx(told)


def test_the_batching_lab_and_a_plan_have_the_same_limits() -> None:
    lab = BY_KEY["batching"]
    for model in ("llama-3-8b", "mixtral-8x7b"):
        found = lab.compute(lab.state({"model": model, "device": "h200"}))
        exact = {number.key: number.value for number in found.numbers if number.reading == "exact"}
        asked = plan(Ask(model=model, gpu="h200", weights="bf16", prompt=8191, output=2)).exact
        told = {"b_star": asked.b_star, "b_cross": asked.b_cross,
                "intensity_ceiling": asked.intensity_ceiling,
                "throughput_ceiling": asked.throughput_ceiling_tok_s}
        assert {key: exact[key] for key in told} == pytest.approx(told)


def test_a_described_encoder_is_counted_by_its_blocks() -> None:
    """The named one by the closed form alone, in both readings."""
    lab, both = BY_KEY["image"], {}
    for name in next(control for control in lab.controls if control.key == "encoder").choices:
        found = lab.compute(lab.state({"encoder": name}))
        both[name] = {one.reading: float(one.value) for one in found.numbers if one.key == "encoder"}
    assert both["so400m, 384 px"]["exact"] == both["so400m, 384 px"]["nominal"]
    described = [one for name, one in both.items() if name.startswith("of ")]
    assert described and all(0.7 < one["exact"] / one["nominal"] < 1.4 for one in described)
    assert all(one["exact"] != one["nominal"] for one in described)


def test_a_first_token_after_a_photograph_is_the_plan_s_where_the_backbone_is_described() -> None:
    lab = BY_KEY["image"]
    found = lab.compute(lab.state({"model": "llama-3-8b"})).numbers
    exact = {one.key: float(one.value) for one in found if one.reading == "exact"}
    asked = plan(Ask(model="llama-3-8b", gpu="h100", prompt=int(exact["prompt_tokens"]), output=2))
    prefill_s = asked.steps.estimate.ttft_s
    preprocess_s = next(float(one.value) for one in found if one.key == "preprocess")
    assert exact["ttft"] == pytest.approx(preprocess_s + exact["encoder"] + prefill_s)
    nominal_alone = lab.compute(lab.state({})).numbers
    assert [one.reading for one in nominal_alone if one.key == "ttft"] == ["nominal"]


def test_degrees_that_divide_no_head_are_marked() -> None:
    for model, ways in (("falcon-7b", 2), ("llama-3-8b", 4)):
        lab = BY_KEY["tensor-parallel"]
        found = lab.compute(lab.state({"model": model, "step": ways.bit_length()}))
        works = next(number for number in found.numbers if number.key == "divides")
        assert works.value is (model == "llama-3-8b")
        assert ("cannot share" in found.notes[0]) is not works.value


def ends(control: Control) -> tuple[Value, ...]:
    """The values at the borders of what a control takes; of a choice the first, the last and the default."""
    if control.kind == "number":
        assert control.low is not None and control.high is not None
        return (type(control.default)(control.low), type(control.default)(control.high))
    chosen = (control.choices[0], control.choices[-1], control.default) if control.choices else (False, True)
    return tuple(dict.fromkeys(chosen))


def leaves(tree: object) -> Iterator[object]:
    if isinstance(tree, dict | list | tuple):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(branch)
    else:
        yield tree


def check(lab: Lab, state: dict[str, Value]) -> Result:
    try:
        result = lab.compute(state)
    except ConfigError as error:  # not every shape can be cut so, nor every device joined: said with what can
        assert state["tp"] != "1" and re.search("sizes that work are 1|cannot be priced: use", str(error))
        return check(lab, {**state, "tp": "1"})
    assert all(math.isfinite(leaf) for leaf in leaves(asdict(result)) if isinstance(leaf, float))
    json.dumps(asdict(result), allow_nan=False)
    for chart in result.charts:
        for series in chart.series:
            assert len(series.x) == len(series.y) and len(series.upper) in (0, len(series.x))
            assert not chart.log_y or all(y > 0 for y in series.y), (chart.key, series.name)
    keys = [(number.key, number.reading) for number in result.numbers]
    assert len(keys) == len(set(keys))
    return result


@EVERY_LAB
def test_every_control_changes_an_output(lab: Lab) -> None:
    """A control that moves nothing is a lie on the page. A page of steps is looked at on its last."""
    start = lab.state({})
    start.update({control.key: ends(control)[-1] for control in lab.controls if control.key == "step"})
    told = asdict(check(lab, start))
    for control in lab.controls:
        others = [value for value in ends(control) if value != start[control.key]]
        assert any(asdict(check(lab, {**start, control.key: value})) != told for value in others), control.key


@EVERY_LAB
def test_bad_values_are_refused_by_name(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="no control 'nonsense'"):
        lab.state({"nonsense": 1})
    for control in lab.controls:
        wrong: list[object] = ["nonsense", float("nan"), None]
        if control.high is not None:
            wrong += [control.high + 1, -1e9]
        if isinstance(control.default, int) and control.kind == "number":
            wrong.append(control.default + 0.5)
        for value in wrong:
            with pytest.raises(ConfigError, match=control.key):
                lab.state({control.key: value})


@LIGHT_FIRST
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_corners_are_sayable(lab: Lab, data: st.DataObject) -> None:
    check(lab, {control.key: data.draw(st.sampled_from(ends(control))) for control in lab.controls})


def test_the_index_has_no_twins_and_every_number_its_source() -> None:
    assert len(BY_KEY) == len(LABS)
    for lab in LABS:
        assert lab.lead and lab.title
        result = lab.compute(lab.state({}))
        assert result.numbers and result.notes, lab.key
        steps = [control for control in lab.controls if control.key == "step"]
        assert bool(steps) == bool(result.num_steps)
        assert all(control.high == result.num_steps for control in steps)


@pytest.mark.soak
@EVERY_LAB
def test_every_model_and_device_of_a_menu(lab: Lab) -> None:
    for control in lab.controls:
        for value in control.choices:
            check(lab, {**lab.state({}), control.key: value})
