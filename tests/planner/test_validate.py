"""Floors never exceed a measurement: every public point, reported row by row; and what a bad file says."""

from pathlib import Path

import pytest

from ridgeline.base.errors import ConfigError
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
