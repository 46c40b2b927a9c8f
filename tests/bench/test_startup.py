"""Protects `ridgeline bench startup`: processes and caches of their own, and what fails in them."""

import json
from pathlib import Path

import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.bench.startup import run
from tests.engine.tiny import tiny_folder


@pytest.mark.soak  # compiles the CPU's kernels anew
@pytest.mark.timeout(300)
def test_a_start_is_measured_twice(tmp_path: Path) -> None:
    """Compiled kernels are there the second time; nothing of ours takes less than torch alone."""
    said: list[str] = []
    engine = EngineConfig(model=str(tiny_folder(tmp_path, tokenizer=False)), load_format="dummy", threads=1,
                          device="cpu", kv_cache_bytes=1_000_000, progress=False)
    assert run(engine, as_json=True, write=said.append) == 0
    found = json.loads(said[0])
    assert found["bench"] == "startup" and 0 < found["floor_s"] < 1 and found["weights_bytes"] > 0
    assert [start["caches"] for start in found["starts"]] == ["empty", "full"]
    for start in found["starts"]:
        assert start["total_s"] > found["bare_s"] and start["total_s"] > start["build_s"] > 0
        assert sum(start["phases_s"].values()) <= start["build_s"] and start["first_token_s"] > 0


def test_what_fails_in_the_process_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a start failed: .*nowhere"):  # before its kernels are compiled
        run(EngineConfig(model=str(tmp_path / "nowhere")))
