"""A disk cache of repacked weights: one file a checkpoint and choice of packings, verified and memory-mapped.

The file's name is the hash of everything that its bytes depend on, so nothing is ever updated in place.
Layout: magic, tensors at multiples of 64 bytes, a JSON table with the checksums of each tensor's ends, and
its length and hash.
"""

import hashlib
import json
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.models.checkpoint import Checkpoint
from ridgeline.quant.format import Held

_log = logging.getLogger(__name__)
_MAGIC = b"RLREPK01"  # the last two digits are the version of this layout
_ALIGN = 64
_END_BYTES = 1 << 16  # checked at both ends of each tensor: a hole after a crash shows there
_TAIL = struct.Struct("<Q32s8s")
_KEPT_FILES = 4  # of one checkpoint


class RepackCache:
    """Packed weights of one checkpoint under one choice of packings (weight name -> Packing.key).

    folder None or no packings: a cache that keeps nothing. Leaving the context without `finish` leaves no
    file.
    """

    def __init__(self, folder: Path | None, checkpoint: Checkpoint, packings: Mapping[str, str]) -> None:
        self._used = folder is not None and bool(packings)
        self._folder = folder or Path()
        self._stem = f"{checkpoint.path.name if checkpoint.path else checkpoint.name}-"
        self._path = self._folder / f"{self._stem}{_identity(checkpoint, packings)}.repack"
        self._names = set(packings)
        self._writing: BinaryIO | None = None
        self._table: dict[str, dict[str, object]] = {}

    def __enter__(self) -> "RepackCache":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._discard()

    def load(self) -> dict[str, dict[str, Tensor]]:
        """Weight -> its tensors, mapped; {} without a file or with a damaged one (which is removed)."""
        if not self._used or not self._path.is_file():
            return {}
        found = _read(self._path)
        if found is None or set(found) != self._names:
            _log.warning("the repacked weights in %s are damaged: packing again", self._path)
            self._path.unlink(missing_ok=True)
            return {}
        os.utime(self._path)
        return found

    def add(self, name: str, weight: Held | Tensor) -> None:
        """Append a weight to the file in the making. A full or read-only disk ends the cache, with a log."""
        tensors = {"weight": weight} if isinstance(weight, Tensor) else weight.tensors()
        if not self._used:
            return
        try:
            if self._writing is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._writing = self._temporary().open("wb")
                self._writing.write(_MAGIC)
            self._table[name] = {key: _append(self._writing, tensor) for key, tensor in tensors.items()}
        except OSError as error:
            self._give_up(error)

    def finish(self) -> None:
        """Put the file in place, whole or not at all, and drop the oldest ones of the checkpoint."""
        if self._writing is None:
            return
        assert set(self._table) == self._names, "every cached packing is added before the cache is finished"
        table = json.dumps(self._table).encode()
        try:
            self._writing.write(table + _TAIL.pack(len(table), hashlib.sha256(table).digest(), _MAGIC))
            self._writing.flush()
            os.fsync(self._writing.fileno())
            self._temporary().replace(self._path)
            ours = sorted(self._folder.glob(f"{self._stem}*.repack"), key=lambda p: p.stat().st_mtime)
            for old in ours[:-_KEPT_FILES]:
                old.unlink(missing_ok=True)
        except OSError as error:
            self._give_up(error)

    def _temporary(self) -> Path:
        return self._path.with_suffix(f".{os.getpid()}.tmp")

    def _give_up(self, error: OSError) -> None:
        _log.warning("no repacked weights are kept in %s (%s): each start packs again", self._folder, error)
        self._used = False
        self._discard()

    def _discard(self) -> None:
        """Close and remove what is not in place."""
        if self._writing is not None:
            self._writing.close()
            self._temporary().unlink(missing_ok=True)
            self._writing = None


def _identity(checkpoint: Checkpoint, packings: Mapping[str, str]) -> str:
    """A hash of the files (path, size, time, tensor table), the packings and what their layouts depend on."""
    files = sorted({tensor.file.resolve() for tensor in checkpoint.tensors.values()})
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    table = sorted((t.name, t.format, t.shape, t.offset_bytes) for t in checkpoint.tensors.values())
    parts = sorted((name, repr(source)) for name, source in checkpoint.sources.items())
    machine = (torch.__version__, torch.backends.cpu.get_cpu_capability(), _MAGIC)
    whole = repr((stats, table, parts, sorted(packings.items()), machine))
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def _append(file: BinaryIO, tensor: Tensor) -> dict[str, object]:
    """Write one tensor; returns its entry of the table."""
    file.write(bytes(-file.tell() % _ALIGN))
    offset = file.tell()
    array: NDArray[np.uint8] = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    data = array.data
    file.write(data)
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "offset": offset,
            "bytes": len(data), "ends": _ends(data)}


def _ends(data: memoryview) -> int:
    return zlib.crc32(data[-_END_BYTES:], zlib.crc32(data[:_END_BYTES]))


def _read(path: Path) -> dict[str, dict[str, Tensor]] | None:
    """The tensors of a file, or None when anything in it is not as written."""
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        size, digest, magic = _TAIL.unpack(data[-_TAIL.size:])
        table = bytes(data[-_TAIL.size - size:-_TAIL.size])
        if magic != _MAGIC or bytes(data[:8]) != _MAGIC or hashlib.sha256(table).digest() != digest:
            return None
        entries = json.loads(table)
        for tensors in entries.values():
            for entry in tensors.values():
                if _ends(data[entry["offset"]:entry["offset"] + entry["bytes"]]) != entry["ends"]:
                    return None
    except (OSError, ValueError, struct.error):
        return None
    return {name: {key: _tensor(data, entry) for key, entry in tensors.items()}
            for name, tensors in entries.items()}


def _tensor(data: memoryview, entry: Mapping[str, object]) -> Tensor:
    dtype = getattr(torch, str(entry["dtype"]))
    offset, num_bytes, shape = entry["offset"], entry["bytes"], entry["shape"]
    assert isinstance(offset, int) and isinstance(num_bytes, int) and isinstance(shape, list)
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(data, dtype=torch.uint8, count=num_bytes, offset=offset)
    return flat.view(dtype).view(shape)
