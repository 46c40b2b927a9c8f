"""The safetensors header reader: single files, sharded folders, and what a broken one is called."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ridgeline.base.errors import CheckpointError
from ridgeline.models.files.safetensors import read_folder, read_safetensors


def write(path: Path) -> Path:
    save_file(
        {
            "b": np.arange(6, dtype=np.float32).reshape(2, 3),
            "a": np.ones((3,), np.float16),
            "empty": np.zeros((0, 4), np.float32),
            "scalar": np.array(3, np.int64),
        },
        path,
    )
    return path


def sharded(folder: Path) -> Path:
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, name in enumerate(names):
        save_file({f"t{i}": np.full((4,), i, np.float32)}, folder / name)
    index = {"metadata": {"total_size": 32}, "weight_map": {f"t{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_table_points_at_the_bytes(tmp_path: Path) -> None:
    """Protects: names, formats, shapes and absolute offsets of one file."""
    path = write(tmp_path / "m.safetensors")
    tensors = read_safetensors(path)
    assert set(tensors) == {"a", "b", "empty", "scalar"}
    b = tensors["b"]
    assert (b.format, b.shape, b.row_bytes) == ("float32", (2, 3), 12)
    assert np.frombuffer(path.read_bytes(), np.float32, 6, b.offset_bytes).tolist() == [0, 1, 2, 3, 4, 5]
    assert tensors["scalar"].shape == () and tensors["empty"].num_bytes == 0


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 0.5, -1])
def test_truncated_file_is_called_incomplete(tmp_path: Path, keep: float) -> None:
    """Protects: a cut file names itself, the size needed and the size found."""
    path = write(tmp_path / "m.safetensors")
    data = path.read_bytes()
    size = int(len(data) * keep) if 0 < keep < 1 else int(keep) % len(data)
    path.write_bytes(data[:size])
    with pytest.raises(CheckpointError, match="incomplete") as error:
        read_safetensors(path)
    assert str(path) in str(error.value) and str(size) in str(error.value)


def test_extra_bytes_and_wrong_sizes_are_wrong_offsets(tmp_path: Path) -> None:
    """Protects: a header that does not describe its data is refused with the tensor's name."""
    path = write(tmp_path / "m.safetensors")
    data = path.read_bytes()
    path.write_bytes(data + b"xx")
    with pytest.raises(CheckpointError, match="wrong offsets"):
        read_safetensors(path)
    path.write_bytes(data.replace(b'"shape":[2,3]', b'"shape":[2,4]'))
    with pytest.raises(CheckpointError, match="wrong offsets: tensor b"):
        read_safetensors(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"GGUF" + bytes(range(1, 60)), "not a safetensors file"),
        (b"\x05" + bytes(7) + b"hello", "not a safetensors file"),
        (b"\x02" + bytes(7) + b"[]", "not a safetensors file"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    """Protects: a pointer file, another format and rubbish each get their own words."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=words):
        read_safetensors(path)


def test_unknown_dtype_names_the_tensor(tmp_path: Path) -> None:
    """Protects: a future dtype is refused by tensor and dtype, not read as something else."""
    path = write(tmp_path / "m.safetensors")
    path.write_bytes(path.read_bytes().replace(b'"F16"', b'"F12"'))
    with pytest.raises(CheckpointError, match="tensor a has dtype F12"):
        read_safetensors(path)


def test_sharded_folder(tmp_path: Path) -> None:
    """Protects: tensors of all shards by the index, and without an index by their numbers."""
    folder = sharded(tmp_path)
    assert set(read_folder(folder)) == {"t0", "t1"}
    (folder / "model.safetensors.index.json").unlink()
    assert set(read_folder(folder)) == {"t0", "t1"}


@pytest.mark.parametrize("with_index", [True, False])
def test_missing_shard_is_named(tmp_path: Path, with_index: bool) -> None:
    """Protects: a two-shard model with one file gone does not start, and says which file and why."""
    folder = sharded(tmp_path)
    (folder / "model-00002-of-00002.safetensors").unlink()
    if not with_index:
        (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors.*incomplete"):
        read_folder(folder)


def test_index_that_names_what_is_not_there(tmp_path: Path) -> None:
    """Protects: an index naming a file that never existed, a tensor of another file, a path, or cut JSON."""
    folder = sharded(tmp_path)
    path = folder / "model.safetensors.index.json"
    good = json.loads(path.read_text())["weight_map"]
    for weight_map, words in (
        (good | {"t9": "ghost.safetensors"}, "ghost.safetensors.*incomplete"),
        (good | {"t9": good["t0"]}, "tensor t9 is not in this file"),
        (good | {"t9": "../x.safetensors"}, "not a plain file name"),
    ):
        path.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(CheckpointError, match=words):
            read_folder(folder)
    path.write_text('{"weight_map": {"t0')
    with pytest.raises(CheckpointError, match="incomplete"):
        read_folder(folder)


def test_folder_without_weights_says_what_is_read(tmp_path: Path) -> None:
    """Protects: a folder of another format names the formats that we read."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="only safetensors and GGUF"):
        read_folder(tmp_path)
