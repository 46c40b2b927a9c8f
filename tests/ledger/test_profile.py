"""Protects the measured profile: it survives the disk whole, and a wrong file is refused by name."""

from pathlib import Path

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.profile import MachineProfile, StepTable, load_profile, profile_path, save_profile

TABLE = StepTable(rows=(1, 4, 5), row_s=(8e-3, 2e-2, 3e-2), context=64, chunk=(64, 256), chunk_s=(0.2, 0.7))


def profile(name: str) -> MachineProfile:
    return MachineProfile(name=name, threads=2, memory_bytes=24 * 10**9, read_bytes_per_s=28e9,
                          flops_per_s={"float32": 84e9, "bfloat16": 191e9}, about={"processor": "any"},
                          tables={"smollm2-135m:auto": TABLE})


def test_a_profile_comes_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))
    path = save_profile(profile("mine"))
    assert path == tmp_path / "profiles" / "mine.json" == profile_path("mine")
    assert load_profile("mine") == load_profile(str(path)) == profile("mine")
    assert load_profile("mine").hardware().rate("bfloat16") == 191e9


def test_a_missing_profile_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no profile .*other\.json: measure this machine with"):
        load_profile("other")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 0}', '{"format": 1, "tables": {}}',
                                  '{"format": 1, "tables": {"a": {"context": 1, "rows": [1]}}}'])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.json is not a machine profile"):
        load_profile(str(path))


@pytest.mark.parametrize("wrong", [dict(rows=(1,), row_s=(1.0,)), dict(rows=(4, 1, 5)), dict(row_s=(1.0,))])
def test_a_table_needs_ascending_counts(wrong: dict[str, tuple[float, ...]]) -> None:
    fields = {name: getattr(TABLE, name) for name in ("rows", "row_s", "context", "chunk", "chunk_s")} | wrong
    with pytest.raises(ConfigError, match="ascending"):
        StepTable(**fields)
