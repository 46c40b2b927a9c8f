"""Protects loading onto a GPU: by several threads through pinned memory, the same numbers as on a CPU."""

from pathlib import Path

import pytest
import torch

from ridgeline.base.errors import CheckpointError
from ridgeline.models.checkpoint import open_checkpoint
from ridgeline.nn.load import dense, load_weights
from tests.kernels.devices import CUDA, ONLY_GPU
from tests.nn.test_load import tensor, write_gguf

pytestmark = ONLY_GPU


@pytest.mark.parametrize("kind", ["q4_1", "q8_0", "float32", "bfloat16"])
def test_what_arrives_is_what_a_cpu_reads(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In many small slices, so that every buffer is written again and again."""
    monkeypatch.setattr("ridgeline.nn.load._COPIED_ELEMENTS", 1 << 10)
    monkeypatch.setattr("ridgeline.nn.load._DECODED_ELEMENTS", 1 << 10)
    checkpoint, _ = write_gguf(tmp_path / "m.gguf", kind)
    for dtype in (torch.float32, torch.bfloat16):
        there = load_weights(checkpoint, dense(dtype), device=CUDA, progress=False)
        here = load_weights(checkpoint, dense(dtype), progress=False)
        assert there.keys() == here.keys()
        for name in here:
            assert torch.equal(tensor(there, name).cpu(), tensor(here, name)), name


def test_a_number_that_is_not_finite_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    found = write_gguf(path, "float32")[0].tensors["blk.0.ffn_down.weight"]
    data = bytearray(path.read_bytes())
    data[found.offset_bytes : found.offset_bytes + 4] = b"\x00\x00\xc0\x7f"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_down\.weight holds NaN"):
        load_weights(open_checkpoint(path), dense(torch.bfloat16), device=CUDA, progress=False)
