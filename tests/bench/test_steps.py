"""Protects `ridgeline calibrate` and `ridgeline bench steps` as a whole, on a tiny random model: steps are
measured as asked, a calibration is fitted and kept in its file, and other steps are compared with it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.bench.calibrate import Course, course_steps, report
from ridgeline.bench.steps import StepArgs, Stepper, run
from ridgeline.ledger.calibrate import calibrate_steps
from ridgeline.ledger.profile import MachineProfile, load_profile, save_profile
from tests.bench.test_offline import TINY


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return str(tmp_path)


def bare(path: Path) -> MachineProfile:
    return MachineProfile(name=str(path), threads=1, memory_bytes=1 << 30, read_bytes_per_s=2e10,
                          flops_per_s={"float32": 1e11}, about={"processor": "test"})


def test_measured_steps_become_a_calibration_that_other_steps_are_compared_with(
        model: str, tmp_path: Path) -> None:
    profile = bare(tmp_path / "box.json")
    course = Course(models=((model, "dummy"),), rows=(1, 4), contexts=(20, 60), tokens=200, prompts=(3, 16),
                    beside=(0, 2), pause_s=1e-3, passes=2)
    taken = course_steps(course, profile, "cpu", threads=1)
    assert {tokens: len(points) for tokens, points in taken.decodes.items()} == {1: 2, 4: 2}
    assert {tokens: len(points) for tokens, points in taken.prompts.items()} == {3: 1, 16: 2}
    assert taken.apart > 0 and len(taken.woken) == 2
    calibration = calibrate_steps(taken.decodes, taken.prompts, [(0.1, 0.12)], {"launch_s": 1e-5})
    profile = replace(profile, calibration=calibration)
    save_profile(profile)
    kept = load_profile(profile.name)
    assert kept.calibration == profile.calibration
    assert "20% longer" in report(calibration, 0.1)
    assert "residual error of the 7 steps" in report(calibration, 0.1)
    engine = EngineConfig(model=model, load_format="dummy", device="cpu", threads=1, progress=False,
                          max_num_seqs=4, prefix_caching=False)
    said: list[str] = []
    run(StepArgs(engine=engine, profile=profile.name, batches=(2,), contexts=(40,), json=True), said.append)
    (found,) = json.loads(said[0])["steps"]
    assert found["rows"] == 2 and 36 <= found["context"] <= 44
    assert found["predicted_s"] > 0 and found["error"] == found["predicted_s"] / found["measured_s"] - 1


def test_a_context_that_the_cache_cannot_hold_is_cut_and_said(model: str) -> None:
    stepper = Stepper(EngineConfig(model=model, load_format="dummy", device="cpu", threads=1, progress=False,
                                   max_num_seqs=4, prefix_caching=False, kv_cache_bytes=100_000))
    try:
        assert stepper.decode(4, 500).context < 300
    finally:
        stepper.close()


def test_a_profile_without_a_calibration_says_how_to_make_one(model: str, tmp_path: Path) -> None:
    profile = bare(tmp_path / "old.json")
    save_profile(profile)
    engine = EngineConfig(model=model, load_format="dummy", device="cpu", threads=1, progress=False)
    with pytest.raises(ConfigError, match="ridgeline calibrate"):
        run(StepArgs(engine=engine, profile=profile.name, batches=(1,), contexts=(40,)))
