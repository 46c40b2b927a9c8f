"""Header reader for safetensors, single files and sharded folders. Reads no weights."""

import json
import re
import struct
from pathlib import Path

from ridgeline.base.errors import CheckpointError
from ridgeline.models.files.stored import INCOMPLETE, StoredTensor, check_extents, stored_bytes

INDEX_NAME = "model.safetensors.index.json"
_MOST_HEADER_BYTES = 100_000_000  # the format's own bound
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool"}
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensor table of one file. CheckpointError when it is cut short or malformed."""
    header, data_start, file_bytes = _header(path)
    tensors = []
    for name, entry in header.items():
        if name != "__metadata__":
            tensors.append(_tensor(path, name, entry, data_start))
    check_extents(tensors, file_bytes)
    end = max((t.offset_bytes + t.num_bytes for t in tensors), default=data_start)
    if end != file_bytes:
        raise CheckpointError(f"{path}: wrong offsets: they end at byte {end}, the file has {file_bytes}")
    return {t.name: t for t in tensors}


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """The tensor table of a folder: by its index, else of its shards or its single file.

    CheckpointError lists missing shards and files that the index names in vain.
    """
    index = folder / INDEX_NAME
    wanted = _indexed(index) if index.is_file() else {}
    files = sorted(set(wanted.values())) if wanted else _found(folder)
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder}: missing weight files {', '.join(missing)} of {len(files)}; "
                              "the download is probably incomplete: fetch the missing files")
    tensors: dict[str, StoredTensor] = {}
    for name in files:
        for tensor in read_safetensors(folder / name).values():
            if tensor.name in tensors:
                raise CheckpointError(f"{folder}: tensor {tensor.name} is both in {name} and in "
                                      f"{tensors[tensor.name].file.name}: remove the wrong one")
            tensors[tensor.name] = tensor
    for name, file in wanted.items():
        if name not in tensors or tensors[name].file.name != file:
            raise CheckpointError(f"{folder / file}: tensor {name} is not in this file although the index "
                                  "says so: they are of different downloads; fetch them again")
    return tensors


def _header(path: Path) -> tuple[dict[str, object], int, int]:
    """(header, first byte of the data, file size)."""
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start == b"version ":
            raise CheckpointError(f"{path}: a Git LFS pointer, not the file itself: run `git lfs pull`")
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if len(start) == 8 and (size > _MOST_HEADER_BYTES or size < 2):
            raise CheckpointError(f"{path}: not a safetensors file (its header would take {size} bytes)")
        if len(start) < 8 or 8 + size > file_bytes:
            raise CheckpointError(f"{path}: expected at least {8 + max(size, 2)} bytes for the header, "
                                  f"the file has {file_bytes}; {INCOMPLETE}")
        text = file.read(size)
    try:
        header = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: not a safetensors file: its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: not a safetensors file: its header is a {type(header).__name__}")
    return header, 8 + size, file_bytes


def _tensor(path: Path, name: str, entry: object, data_start: int) -> StoredTensor:
    try:
        assert isinstance(entry, dict)
        dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (AssertionError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: tensor {name} has a malformed header entry {entry!r}") from None
    if dtype not in DTYPES:
        raise CheckpointError(f"{path}: tensor {name} has dtype {dtype}, which is not known: "
                              f"use a checkpoint of {', '.join(sorted(DTYPES))}")
    kind = DTYPES[dtype]
    expected = stored_bytes(kind, shape)
    if begin < 0 or any(size < 0 for size in shape) or end - begin != expected:
        raise CheckpointError(f"{path}: wrong offsets: tensor {name} of shape {list(shape)} and {dtype} "
                              f"takes {expected} bytes, its offsets [{begin}, {end}] give {end - begin}")
    return StoredTensor(name=name, format=kind, shape=shape, file=path, offset_bytes=data_start + begin,
                        num_bytes=end - begin)


def _indexed(index: Path) -> dict[str, str]:
    """Tensor name -> file name, as the index says."""
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        assert isinstance(names, dict) and names
        files = {str(name): str(file) for name, file in names.items()}
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{index}: no readable weight_map ({type(error).__name__}: {error}); "
                              f"{INCOMPLETE}") from None
    for file in files.values():
        if Path(file).name != file:
            raise CheckpointError(f"{index}: names the file {file!r}, which is not a plain file name")
    return files


def _found(folder: Path) -> list[str]:
    """Weight files of a folder without an index, those that are missing from a numbered set included."""
    names = sorted(p.name for p in folder.glob("*.safetensors"))
    if "model.safetensors" in names:
        return ["model.safetensors"]
    for match in filter(None, map(_SHARD.fullmatch, names)):
        return [f"{match[1]}-{i:05d}-of-{match[3]}.safetensors" for i in range(1, int(match[3]) + 1)]
    if not names:
        packed = sorted(p.name for p in folder.glob("*.gguf"))
        hint = (f"name the GGUF file itself ({', '.join(packed)})" if packed else
                "load_format dummy runs a config alone, with random weights")
        raise CheckpointError(f"{folder}: no *.safetensors file in this folder; only safetensors and GGUF "
                              f"are read: {hint}")
    return names
