"""The disk cache of repacked weights: a hit packs nothing, and anything wrong with it only costs a new
packing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import Tensor

from ridgeline.base.errors import CheckpointError
from ridgeline.models.checkpoint import Checkpoint, open_checkpoint
from ridgeline.nn.load import Policy, Weights, load_weights
from ridgeline.quant.format import Dense, Packed, Packing, SourceWeight
from ridgeline.spec.block import ParamSpec
from tests.models.test_checkpoint import arrays, write_folder


@dataclass(frozen=True)
class Halves:
    """A packed weight: two tensors of different types."""

    scale_R: Tensor
    codes_RC: Tensor

    def apply(self, x_TK: Tensor, prefill_from: int) -> Tensor:
        return x_TK @ (self.codes_RC * self.scale_R[:, None]).to(x_TK.dtype).T

    def tensors(self) -> Mapping[str, Tensor]:
        return {"scale": self.scale_R, "codes": self.codes_RC}


class Int8Rows:
    """Packs to int8 rows, and counts how often."""

    cached = True

    def __init__(self, key: str = "int8_rows/1") -> None:
        self.key = key
        self.packed: list[str] = []

    def pack(self, weight: SourceWeight, device: torch.device) -> Halves:
        self.packed.append(weight.name)
        dense = weight.dense(torch.float32, device)
        scale = dense.abs().amax(1) / 127
        return Halves(scale.half(), (dense / scale[:, None]).round().to(torch.int8))

    def restore(self, param: ParamSpec, tensors: Mapping[str, Tensor], device: torch.device) -> Halves:
        return Halves(tensors["scale"], tensors["codes"])


def policy(packing: Int8Rows) -> Policy:
    dense = Dense(torch.float32)

    def choose(name: str, param: ParamSpec) -> Packing[Packed | Tensor]:
        return packing if param.role == "linear" and name != "head.weight" else dense

    return choose


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    random = np.random.default_rng(0)
    (tmp_path / "model").mkdir()
    tensors = {name: random.standard_normal(a.shape, np.float32) for name, a in arrays().items()}
    return open_checkpoint(write_folder(tmp_path / "model", tensors))


def same(a: Weights, b: Weights) -> bool:
    for name, left in a.items():
        right = b[name]
        if isinstance(left, Tensor):
            assert isinstance(right, Tensor) and torch.equal(left, right)
        else:
            assert not isinstance(right, Tensor)
            pairs = [(left.tensors()[key], right.tensors()[key]) for key in left.tensors()]
            assert all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)
    return a.keys() == b.keys()


def load(checkpoint: Checkpoint, cache: Path, key: str = "int8_rows/1") -> tuple[Weights, int]:
    packing = Int8Rows(key)
    return load_weights(checkpoint, policy(packing), cache_dir=cache), len(packing.packed)


def files(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.is_dir() else []


def test_second_load_packs_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Protects: a hit restores the same objects from one mapped file, without a pack."""
    cache = tmp_path / "cache"
    first, packed = load(checkpoint, cache)
    assert packed == 4 and len(files(cache)) == 1
    second, packed = load(checkpoint, cache)
    assert packed == 0 and same(first, second)


@pytest.mark.parametrize("change", ["key", "touched", "rewritten"])
def test_another_packing_or_file_is_another_entry(
    checkpoint: Checkpoint, tmp_path: Path, change: str
) -> None:
    """Protects: the key covers the scheme and its version, and the file's identity."""
    cache = tmp_path / "cache"
    load(checkpoint, cache)
    path = tmp_path / "model" / "model.safetensors"
    if change == "touched":
        os.utime(path, ns=(1, 1))
    if change == "rewritten":
        save_file({n: a * 2 for n, a in arrays().items()}, path)
    again = open_checkpoint(tmp_path / "model")
    assert load(again, cache, "int8_rows/2" if change == "key" else "int8_rows/1")[1] == 4
    assert len(files(cache)) == 2


@pytest.mark.parametrize("damage", ["empty", "cut", "zeros", "table", "appended", "other"])
def test_damaged_file_is_rebuilt(
    checkpoint: Checkpoint, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects: a hole, a cut or a foreign file is noticed, said once and replaced."""
    cache = tmp_path / "cache"
    first, _ = load(checkpoint, cache)
    path = files(cache)[0]
    data = bytearray(path.read_bytes())
    middle = len(data) // 3
    path.write_bytes(
        {
            "empty": b"",
            "cut": bytes(data[:-100]),
            "zeros": bytes(data[:middle]) + bytes(64) + bytes(data[middle + 64 :]),
            "table": bytes(data[:-60]) + b"x" + bytes(data[-59:]),
            "appended": bytes(data) + b"x",
            "other": b"hello world" * 100,
        }[damage]
    )
    again, packed = load(checkpoint, cache)
    assert packed == 4 and same(first, again) and "damaged" in caplog.text
    assert load(checkpoint, cache)[1] == 0


def test_interrupted_load_leaves_no_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Protects: an error while packing leaves neither a cache entry nor a temporary file."""
    path = tmp_path / "model" / "model.safetensors"
    tensors = arrays()
    tensors["model.layers.0.mlp.down_proj.weight"][3, 3] = np.nan
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match="holds NaN"):
        load(open_checkpoint(tmp_path / "model"), tmp_path / "cache")
    assert files(tmp_path / "cache") == []


def test_disk_that_cannot_be_written(
    checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects: no cache is no error: the load goes on and the log says why the next one will take as
    long."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    weights, packed = load(checkpoint, tmp_path / "cache")
    assert packed == 4 and len(weights) == 8 and "each start packs again" in caplog.text


def test_old_entries_of_a_checkpoint_are_dropped(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Protects: many choices of packing do not fill the disk; the newest stay."""
    cache = tmp_path / "cache"
    for version in range(7):
        load(checkpoint, cache, f"int8_rows/{version}")
        for age, path in enumerate(sorted(files(cache), key=lambda p: p.stat().st_mtime)):
            os.utime(path, (1000 + age, 1000 + age))
    assert len(files(cache)) == 4
    assert load(checkpoint, cache, "int8_rows/6")[1] == 0 and load(checkpoint, cache, "int8_rows/0")[1] == 4


def test_plain_weights_use_no_cache(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Protects: only packings that cost time are kept."""
    load_weights(checkpoint, lambda name, param: Dense(torch.float32), cache_dir=tmp_path / "cache")
    assert files(tmp_path / "cache") == []
