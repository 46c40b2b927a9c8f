"""Protects `bench simulated`: live requests beside simulated ones, each by its own measure."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.bench.simulated import LOADS, Beside, SimulatedArgs, report, run
from ridgeline.ledger.efficiency import Calibration, Efficiency, Levels
from ridgeline.ledger.profile import MachineProfile, save_profile
from tests.engine.tiny import tiny_folder


def profile(tmp_path: Path) -> MachineProfile:
    factors = Efficiency(step_s=1e-3)
    levels = Levels(tokens=(1, 64), factors=(factors, factors))
    return MachineProfile(
        name=str(tmp_path / "machine.json"), threads=1, memory_bytes=10**9, read_bytes_per_s=1e10,
        flops_per_s={"float32": 1e10}, about={},
        calibration=Calibration(decodes=levels, prompts=levels, error=0.0, num_points=2))


def test_every_rate_has_its_errors_and_what_two_live_runs_differ(tmp_path: Path) -> None:
    save_profile(profile(tmp_path))
    folder = tiny_folder(tmp_path / "model", tokenizer=False)
    engine = EngineConfig(model=str(folder), load_format="dummy", threads=1, max_num_seqs=4, progress=False,
                          kv_cache_bytes=4_000_000, prefix_caching=False)
    told: list[str] = []
    code = run(SimulatedArgs(engine=engine, profile=str(tmp_path / "machine.json"), num_requests=4,
                             lengths="fixed:20,3", length_scale=1.0, json=True), told.append)
    rates = json.loads(told[0])["rates"]
    assert code in (0, 1) and len(rates) == len(LOADS)
    assert [one["rate"] / rates[0]["rate"] for one in rates] == pytest.approx([x / LOADS[0] for x in LOADS])
    assert all(one["e2e_s"] > one["ttft_s"] > 0 and one["e2e_live"] >= 0 for one in rates)
    assert all(abs(one["ttft_bias"]) <= one["ttft_error"] and abs(one["e2e_bias"]) <= one["e2e_error"]
               for one in rates)


def test_what_is_too_far_off_is_said() -> None:
    near = Beside(rate=2.0, e2e_s=1.0, ttft_s=0.1, e2e_error=0.06, ttft_error=0.2, e2e_live=0.01,
                  ttft_live=0.14, e2e_bias=-0.031, ttft_bias=0.047)
    far = replace(near, e2e_error=0.08)
    assert near.within and not far.within
    assert all(bias in report("m", [near]).splitlines()[-1] for bias in ("-3.1%", "+4.7%"))
    assert "too far" in report("m", [near, far]).splitlines()[-1] and "too far" not in report("m", [near])


def test_a_profile_without_calibration_is_refused(tmp_path: Path) -> None:
    save_profile(replace(profile(tmp_path), calibration=None))
    with pytest.raises(ConfigError, match="ridgeline calibrate"):
        run(SimulatedArgs(engine=EngineConfig(), profile=str(tmp_path / "machine.json")))
