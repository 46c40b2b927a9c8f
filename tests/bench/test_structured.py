"""`ridgeline bench structured`: its two comparisons on a tiny model."""

import json
from pathlib import Path

import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.bench.structured import StructuredArgs, run
from ridgeline.cli import main
from tests.engine.tiny import tiny_folder


def test_steps_and_answers(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", max_position_embeddings=512)
    engine = EngineConfig(model=str(folder), load_format="dummy", dtype="float32", threads=1, max_num_seqs=2,
                          progress=False, kv_cache_bytes=4_000_000)
    written: list[str] = []
    args = StructuredArgs(engine=engine, num_pairs=1, rows=3, output_tokens=8, batches=(2,), json=True)
    assert run(args, written.append) == 0
    steps, answers = json.loads(written[0])
    assert "3 rows" in steps["what"] and "2 answers" in answers["what"]
    assert all(found["num_pairs"] == 1 and found["plain_s"] > 0 and found["ratio"] > 0
               for found in (steps, answers))


def test_what_it_has_no_use_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "structured", "--prompt-tokens", "3"]) != 0
    assert "no use for --prompt-tokens" in capsys.readouterr().err
