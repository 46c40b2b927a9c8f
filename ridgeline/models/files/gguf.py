"""Header reader for GGUF version 2 and 3 (all metadata types, split files). Reads no weights.

The header of a small model is megabytes of vocabulary, so string arrays are walked once for their offsets and
decoded only when asked. Layout: the GGUF specification in ggml's docs/gguf.md.
"""

import re
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from ridgeline.base.errors import CheckpointError
from ridgeline.models.files.stored import INCOMPLETE, StoredTensor, check_extents, map_file, stored_bytes

_LITTLE = ("B", "b", "H", "h", "I", "i", "f", "?")
_SCALARS: dict[int, struct.Struct] = {i: struct.Struct("<" + c) for i, c in enumerate(_LITTLE)} | {
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d")}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_COUNT, _WORD = struct.Struct("<Q"), struct.Struct("<I")
GGML_TYPES = {
    0: "float32", 1: "float16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k",
    12: "q4_k", 13: "q5_k", 14: "q6_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl",
    21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64",
    29: "iq1_m", 30: "bfloat16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4"}
_MOST_AXES = 8
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


class StringArray(Sequence[str]):
    """The strings of a metadata array, decoded when read; `raw` gives the bytes."""

    def __init__(self, data: memoryview, offsets: "array[int]") -> None:
        self._data = data
        self._offsets = offsets  # of each string's length field

    def __len__(self) -> int:
        return len(self._offsets)

    def raw(self, index: int) -> bytes:
        """The bytes of one string, which need not be UTF-8."""
        start = self._offsets[index]
        return bytes(self._data[start + 8:start + 8 + _COUNT.unpack_from(self._data, start)[0]])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        unpack, data = _COUNT.unpack_from, self._data
        for start in self._offsets:
            yield str(data[start + 8:start + 8 + unpack(data, start)[0]], "utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """metadata: scalars and strings as Python values, arrays of numbers as memoryviews, arrays of strings as
    StringArray, arrays of arrays as lists. tensors: by name, over all files of a split."""

    path: Path
    version: int
    metadata: Mapping[str, object]
    tensors: Mapping[str, StoredTensor]


def read_gguf(path: Path) -> GgufFile:
    """The header of a GGUF file, and of its siblings when it is the first of a split.

    CheckpointError when a file is cut short, not GGUF, of another version or byte order, or missing.
    """
    first = _read_one(path)
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return first
    match = _SPLIT.fullmatch(path.name)
    if match is None or int(match[2]) != 1 or int(match[3]) != count:
        raise CheckpointError(f"{path}: one of {count} files of a split: name the first, "
                              f"called NAME-00001-of-{count:05d}.gguf")
    paths = [path.with_name(f"{match[1]}-{i:05d}-of-{count:05d}.gguf") for i in range(2, count + 1)]
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        raise CheckpointError(f"{path.parent}: missing weight files {', '.join(missing)} of {count}; "
                              "the download is probably incomplete: fetch the missing files")
    tensors = dict(first.tensors)
    for sibling in paths:
        tensors |= _read_one(sibling).tensors
    return GgufFile(path=path, version=first.version, metadata=first.metadata, tensors=tensors)


def _read_one(path: Path) -> GgufFile:
    cursor = _Cursor(path)
    version = cursor.version()
    num_tensors, num_entries = cursor.scalar(_COUNT), cursor.scalar(_COUNT)
    metadata: dict[str, object] = {}
    for _ in range(num_entries):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar(_WORD))
    heads = [_tensor_head(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise CheckpointError(f"{path}: general.alignment is {alignment!r}: the file is corrupt")
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {}
    for name, kind, shape, offset in heads:
        num_bytes = stored_bytes(kind, shape)
        if num_bytes is None or offset % alignment:
            raise CheckpointError(f"{path}: tensor {name} of shape {list(shape)} and type {kind} at offset "
                                  f"{offset} is not aligned: the file is corrupt")
        if name in tensors:
            raise CheckpointError(f"{path}: tensor {name} is listed twice: the file is corrupt")
        tensors[name] = StoredTensor(name=name, format=kind, shape=shape, file=path,
                                     offset_bytes=data_start + offset, num_bytes=num_bytes)
    check_extents(list(tensors.values()), cursor.size)
    return GgufFile(path=path, version=version, metadata=metadata, tensors=tensors)


def _tensor_head(cursor: "_Cursor") -> tuple[str, str, tuple[int, ...], int]:
    """(name, format, shape, offset in the data)."""
    name = cursor.string()
    num_axes = cursor.scalar(_WORD)
    if num_axes > _MOST_AXES:
        raise CheckpointError(f"{cursor.path}: tensor {name} has {num_axes} axes: the file is corrupt")
    shape = tuple(cursor.scalar(_COUNT) for _ in range(num_axes))[::-1]
    type_id = cursor.scalar(_WORD)
    if type_id not in GGML_TYPES:
        raise CheckpointError(f"{cursor.path}: tensor {name} has ggml type {type_id}, which is not known: "
                              f"use a file of {', '.join(GGML_TYPES.values())}")
    return name, GGML_TYPES[type_id], shape, cursor.scalar(_COUNT)


class _Cursor:
    """A position in a mapped file; reads past the end say how much is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = memoryview(map_file(path))
        self.size = len(self.data)
        self.position = 0

    def version(self) -> int:
        """Check magic, byte order and version; leaves the position behind them."""
        magic = bytes(self.data[:4])
        if magic != b"GGUF"[:len(magic)]:
            raise CheckpointError(f"{self.path}: not a GGUF file: it starts with {magic!r}, not with b'GGUF'")
        self.take(24, "the header")  # magic, version and the two counts
        self.position = 4
        version = self.scalar(_WORD)
        if version & 0xFFFF == 0:
            raise CheckpointError(f"{self.path}: a big-endian GGUF file: convert it to little-endian")
        if version not in (2, 3):
            raise CheckpointError(f"{self.path}: GGUF version {version}: only 2 and 3 are read; "
                                  "convert the file again")
        return version

    def take(self, num_bytes: int, what: str) -> int:
        """Move past num_bytes; returns where they start."""
        start, self.position = self.position, self.position + num_bytes
        if self.position > self.size:
            raise CheckpointError(f"{self.path}: expected at least {self.position} bytes to hold {what}, "
                                  f"the file has {self.size}; {INCOMPLETE}")
        return start

    def scalar(self, kind: struct.Struct) -> int:
        return int(kind.unpack_from(self.data, self.take(kind.size, "the header"))[0])

    def string(self) -> str:
        size = self.scalar(_COUNT)
        start = self.take(size, "the header's text")
        return str(self.data[start:start + size], "utf-8", "replace")

    def value(self, kind: int) -> object:
        """One metadata value of a GGUF type id."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar(_WORD), self.scalar(_COUNT)
            return self.array(item, count)
        form = self._form(kind)
        value = form.unpack_from(self.data, self.take(form.size, "the metadata"))[0]
        return _shortest(value) if kind == _FLOAT32 else value

    def array(self, kind: int, count: int) -> object:
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            return [self.value(_ARRAY) for _ in range(count)]
        form = self._form(kind)
        start = self.take(count * form.size, "the metadata")
        return self.data[start:self.position].cast(form.format[1:])  # type: ignore[call-overload]

    def _form(self, kind: int) -> struct.Struct:
        if kind not in _SCALARS:
            raise CheckpointError(f"{self.path}: metadata of unknown type {kind}: the file is corrupt")
        return _SCALARS[kind]

    def _strings(self, count: int) -> StringArray:
        offsets, position, size = array("Q"), self.position, self.size
        unpack, data, append = _COUNT.unpack_from, self.data, offsets.append
        try:
            for _ in range(count):
                append(position)
                position += 8 + unpack(data, position)[0]
        except (struct.error, OverflowError):
            position = max(position + 8, size + 1)
        self.take(position - self.position, "the vocabulary")
        return StringArray(data, offsets)


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    packed = struct.pack("<f", value)
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == packed:
            return short
    return value
