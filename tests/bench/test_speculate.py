"""`ridgeline bench speculate`: pairs of both workloads, and what it refuses."""

import json
from pathlib import Path

import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.bench.speculate import SpeculateArgs, run
from tests.engine.tiny import tiny_folder


def test_pairs(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", max_position_embeddings=2048)
    engine = EngineConfig(model=str(folder), load_format="dummy", dtype="float32", threads=1, max_num_seqs=2,
                          progress=False, speculate="ngram", kv_cache_bytes=4_000_000)
    written: list[str] = []
    assert run(SpeculateArgs(engine=engine, num_pairs=1, output_tokens=8, json=True), written.append) == 0
    edit, chat = json.loads(written[0])
    assert edit["workload"] == "edit" and chat["workload"] == "chat"
    for found in (edit, chat):
        assert found["num_pairs"] == 1 and found["ratio"] > 0 and found["num_different"] == 0


def test_without_drafts_there_is_nothing_to_compare() -> None:
    with pytest.raises(ConfigError, match="--speculate"):
        run(SpeculateArgs(engine=EngineConfig()))
