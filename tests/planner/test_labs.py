"""Protects the labs: their defaults give the numbers that public sources state (by the ids of
tests/seed_numbers), every control matters, wrong values are refused by name, and no state within the ranges
gives a page something that JSON cannot say."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.base.errors import ConfigError
from ridgeline.planner.lab import Control, Lab, Result, Value
from ridgeline.planner.labs.table import LABS

BY_KEY = {lab.key: lab for lab in LABS}
EVERY_LAB = pytest.mark.parametrize("lab", LABS, ids=list(BY_KEY))


def numbers(lab: str, **values: Value) -> dict[str, Value]:
    found = BY_KEY[lab].compute(BY_KEY[lab].state(values))
    return {number.key: number.value for number in found.numbers}


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
)


@pytest.mark.parametrize(("lab", "values", "key", "identity", "part"), STATED)
def test_stated_numbers(lab: str, values: dict[str, Value], key: str, identity: str, part: int) -> None:
    value, tolerance = seed(identity, part)
    assert numbers(lab, **values)[key] == pytest.approx(value, rel=tolerance + 1e-9)


def ends(control: Control) -> tuple[Value, ...]:
    """The values at the borders of what a control takes."""
    if control.kind == "number":
        assert control.low is not None and control.high is not None
        return (type(control.default)(control.low), type(control.default)(control.high))
    return control.choices if control.kind == "choice" else (False, True)


def leaves(tree: object) -> Iterator[object]:
    if isinstance(tree, dict | list | tuple):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(branch)
    else:
        yield tree


def check(lab: Lab, state: dict[str, Value]) -> Result:
    result = lab.compute(state)
    assert all(math.isfinite(leaf) for leaf in leaves(asdict(result)) if isinstance(leaf, float))
    json.dumps(asdict(result), allow_nan=False)
    for chart in result.charts:
        for series in chart.series:
            assert len(series.x) == len(series.y) and len(series.upper) in (0, len(series.x))
            assert not chart.log_y or all(y > 0 for y in series.y), (chart.key, series.name)
    keys = [number.key for number in result.numbers]
    assert len(keys) == len(set(keys))
    return result


@EVERY_LAB
def test_every_control_changes_an_output(lab: Lab) -> None:
    """A control that moves nothing is a lie on the page."""
    start = lab.state({})
    told = asdict(check(lab, start))
    for control in lab.controls:
        others = [value for value in ends(control) if value != control.default]
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


@EVERY_LAB
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
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
