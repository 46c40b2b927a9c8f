"""A tensor as a file stores it: name, format, shape and where its bytes are. Decodes no weight."""

import mmap
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.base.errors import CheckpointError

# format -> (elements of a block, bytes of a block); plain formats have blocks of one element. The quantized
# ones are ggml's, with blocks along a row (the last axis): a row of a matrix is a whole number of blocks.
FORMATS: dict[str, tuple[int, int]] = {
    "float64": (1, 8), "float32": (1, 4), "float16": (1, 2), "bfloat16": (1, 2), "float8_e4m3fn": (1, 1),
    "float8_e5m2": (1, 1), "float8_e8m0fnu": (1, 1), "int64": (1, 8), "int32": (1, 4), "int16": (1, 2),
    "int8": (1, 1), "uint64": (1, 8), "uint32": (1, 4), "uint16": (1, 2), "uint8": (1, 1), "bool": (1, 1),
    "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34),
    "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
    "iq2_xxs": (256, 66), "iq2_xs": (256, 74), "iq3_xxs": (256, 98), "iq1_s": (256, 50),
    "iq4_nl": (32, 18), "iq3_s": (256, 110), "iq2_s": (256, 82), "iq4_xs": (256, 136), "iq1_m": (256, 56),
    "tq1_0": (256, 54), "tq2_0": (256, 66), "mxfp4": (32, 17), "nvfp4": (64, 36),
}
INCOMPLETE = "the download is probably incomplete: fetch the file again"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a checkpoint. shape is row-major ([out, in] for a linear) whatever the file's order."""

    name: str
    format: str
    shape: tuple[int, ...]
    file: Path
    offset_bytes: int
    num_bytes: int

    @property
    def rows(self) -> int:
        """Size of the first axis (1 for a scalar)."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first axis."""
        return self.num_bytes // max(self.rows, 1)

    @property
    def quantized(self) -> bool:
        """True when the bytes are blocks of several weights."""
        return FORMATS[self.format][0] > 1

    def slice(self, index: int) -> "StoredTensor":
        """One index of the first axis as a tensor of its own."""
        return replace(self, shape=self.shape[1:], offset_bytes=self.offset_bytes + index * self.row_bytes,
                       num_bytes=self.row_bytes)


def stored_bytes(kind: str, shape: tuple[int, ...]) -> int | None:
    """Bytes of a tensor of a format, or None when its rows are not a whole number of blocks."""
    block, block_bytes = FORMATS[kind]
    count = 1
    for size in shape:
        count *= size
    if block > 1 and (not shape or shape[-1] % block):
        return None
    return count // block * block_bytes


def map_file(path: Path) -> mmap.mmap:
    """The file's bytes, mapped copy-on-write (never written). CheckpointError when missing or empty."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except ValueError:
        raise CheckpointError(f"{path}: the file is empty (0 bytes); {INCOMPLETE}") from None


def check_extents(tensors: list[StoredTensor], file_bytes: int) -> None:
    """Refuse tensors that end beyond the file or overlap one another. All must lie in one file."""
    end, last = 0, ""
    for tensor in sorted(tensors, key=lambda t: (t.offset_bytes, t.num_bytes)):
        if tensor.offset_bytes < end:
            raise CheckpointError(f"{tensor.file}: wrong offsets: tensor {tensor.name} starts at byte "
                                  f"{tensor.offset_bytes}, inside tensor {last} which ends at byte {end}")
        end, last = tensor.offset_bytes + tensor.num_bytes, tensor.name
        if end > file_bytes:
            whole = max(t.offset_bytes + t.num_bytes for t in tensors)
            raise CheckpointError(f"{tensor.file}: tensor {tensor.name} ends at byte {end}: expected a file "
                                  f"of at least {whole} bytes, it has {file_bytes}; {INCOMPLETE}")


def read_floats(tensor: StoredTensor) -> tuple[float, ...]:
    """The values of a small float32 tensor (rope factors)."""
    if tensor.format != "float32":
        raise CheckpointError(f"{tensor.file}: tensor {tensor.name} is {tensor.format}: expected float32")
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset_bytes)
        return struct.unpack(f"<{tensor.num_bytes // 4}f", file.read(tensor.num_bytes))
