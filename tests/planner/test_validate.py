"""Floors never exceed a measurement: every public point, reported row by row; and what a bad file says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.cli import main
from ridgeline.ledger.efficiency import FITTED, Calibration, Efficiency, Levels
from ridgeline.ledger.profile import MachineProfile, save_profile
from ridgeline.planner.validate import validate

POINTS = Path(__file__).parent / "data" / "validation_points.csv"


def test_no_floor_is_above_its_measurement_and_sizes_are_near() -> None:
    report = validate(POINTS)
    print(report.text())
    assert len(report.points) == 53
    assert sum(p.floor is not None for p in report.points) == 42
    assert [p.id for p in report.points if not p.holds] == []
    assert all(p.floor is None or p.floor > 0.05 * p.measured for p in report.points)
    near = {p.id: p.error for p in report.points if p.floor is None}
    for row in ("M01", "M04", "M05", "M06", "M07", "M09", "M11"):
        assert abs(near[row] or 0.0) < 0.03, f"{row}: {near[row]:+.1%}"
    assert "floors: 42 of 42" in report.text() and len(report.as_json()["points"]) == 53  # type: ignore[arg-type]


def test_a_plan_uses_a_calibrated_machine_when_it_is_named(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its device, its factors and their source; a device that is named as well keeps its own rates."""
    slow = Efficiency(sources={"step_s": FITTED}, step_s=0.5, band=(-0.1, 0.1))
    levels = Levels(tokens=(1, 512), factors=(slow, slow))
    profile = MachineProfile(
        name=str(tmp_path / "box.json"), threads=1, memory_bytes=1 << 36, read_bytes_per_s=1e11,
        flops_per_s={"bfloat16": 1e13}, about={},
        calibration=Calibration(decodes=levels, prompts=levels, error=0.02, num_points=4))
    save_profile(profile)
    assert main(["plan", "llama-3-8b", "--profile", profile.name, "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert own["efficiency"]["step_s"] == {"value": 0.5, "source": FITTED}
    assert own["estimate"]["tpot_s"] > 0.5 > own["tpot_s"] > 15e9 / 1e11
    assert main(["plan", "llama-3-8b", "--gpu", "h100", "--profile", profile.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tpot_s"] < 0.01
    save_profile(replace(profile, calibration=None))
    assert main(["plan", "llama-3-8b", "--profile", profile.name]) == 2
    assert "ridgeline calibrate" in capsys.readouterr().err


@pytest.mark.parametrize(("column", "value", "said"), [("metric", "speed", "row V01.*speed"),
                                                       ("model", "lama-9", "row V01.*nearest"),
                                                       ("weights_dtype", "fp3", "row V01.*fp3")])
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, column: str, value: str, said: str) -> None:
    head, row = POINTS.read_text(encoding="utf-8").splitlines()[:2]
    fields = dict(zip(head.split(","), row.split(","), strict=True)) | {column: value}
    path = tmp_path / "points.csv"
    path.write_text(f"{head}\n{','.join(fields.values())}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        validate(path)
