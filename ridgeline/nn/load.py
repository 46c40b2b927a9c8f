"""Checkpoint -> weights in memory, tensor by tensor from memory maps, each packed as a policy says.

Anonymous memory stays within the final weights and one tensor: files are mapped, rows are decoded in slices
straight into their place. Knows no scheme (quant/ does) and no model family (models/ does). Legend: R rows, B
bytes of a row.
"""

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.base.errors import CheckpointError
from ridgeline.models.checkpoint import Checkpoint
from ridgeline.models.files.stored import StoredTensor, map_file
from ridgeline.models.sources import Part
from ridgeline.nn.dummy import RandomWeights
from ridgeline.nn.progress import Progress
from ridgeline.nn.repack import RepackCache
from ridgeline.nn.rows import BLOCKS, PLAIN, decode, finite_scales, joined_mxfp4
from ridgeline.nn.upload import Room, Uploads
from ridgeline.quant.format import Dense, GgufBlocks, Packed, Packing, SourceWeight
from ridgeline.quant.stack import Stack
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.model import ModelSpec

Weights = dict[str, Tensor | Packed | Stack]
AnyPacking = Packing[Packed | Stack | Tensor]
Policy = Callable[[str, ParamSpec], AnyPacking]
# A slice of a tensor: decoded ones stay in a core's cache and below what torch splits over threads.
_DECODED_ELEMENTS, _COPIED_ELEMENTS = 1 << 15, 1 << 23
_SENT_SLICES = 4  # by one thread, one after another


def dense(dtype: torch.dtype) -> Policy:
    """The policy that holds every weight as a plain tensor of one dtype, scalars in float32."""
    packing, exact = Dense(dtype), Dense(torch.float32)
    return lambda name, param: exact if param.role == "scalar" else packing


def load_weights(checkpoint: Checkpoint, policy: Policy, *, device: str | torch.device = "cpu",
                 progress: bool = True, cache_dir: Path | None = None, seed: int = 0) -> Weights:
    """Every weight of the checkpoint's spec by full name, packed as the policy says.

    policy: (full name, ParamSpec) -> Packing. A tied model's head is asked for as "head.weight" and is in the
    result only when its packing differs from the embedding's. cache_dir: where packings that cost time keep
    their results, None for nowhere. seed: of the random weights of load_format dummy. CheckpointError names
    the file and tensor of a weight that cannot be read, NaN and Inf included.
    """
    device = torch.device(device)
    jobs = list(_jobs(checkpoint.spec, policy))
    costly = {name: packing.key for name, _, packing, _ in jobs if packing.cached}
    weights: Weights = {}
    at_once = device.type == "cuda" and all(isinstance(packing, Dense) for _, _, packing, _ in jobs)
    with (Uploads(device) if at_once else nullcontext() as uploads,
          RepackCache(None if checkpoint.dummy else cache_dir, checkpoint, costly) as cache,
          ThreadPoolExecutor(torch.get_num_threads(), "decode") as pool,
          Progress("loading weights", sum(job[1].num_elements for job in jobs), shown=progress) as bar):
        reader = RandomWeights(seed) if checkpoint.dummy else _Files(checkpoint, pool, uploads)
        kept = cache.load()
        for name, param, packing, source in jobs:
            if name in kept:
                weights[name] = packing.restore(param, kept[name], device)
            else:
                weights[name] = packing.pack(reader.weight(name, param, source), device)
                if packing.cached:
                    cache.add(name, weights[name])
            bar.advance(param.num_elements)
        cache.finish()
    return weights


def _jobs(spec: ModelSpec, policy: Policy) -> Iterator[tuple[str, ParamSpec, AnyPacking, str]]:
    """(full name, param, packing, full name of the source), in the spec's order."""
    params = dict(spec.params())
    packings = {name: policy(name, param) for name, param in params.items()}
    for name, param in params.items():
        yield name, param, packings[name], name
    if spec.tied_embeddings:
        embed = params["embed.weight"]
        head = ParamSpec(name="weight", shape=embed.shape, role="linear", shard=embed.shard)
        packing = policy("head.weight", head)
        if packing != packings["embed.weight"]:
            yield "head.weight", head, packing, "embed.weight"


class _Files:
    """The mapped files of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, pool: ThreadPoolExecutor,
                 uploads: Uploads | None) -> None:
        self._checkpoint = checkpoint
        self._pool = pool
        self._uploads = uploads
        self._maps: dict[Path, mmap.mmap] = {}

    def weight(self, name: str, param: ParamSpec, source: str) -> SourceWeight:
        found = self._checkpoint.sources[source]
        if not found.matrices:
            return self._matrix(name, param, found.parts, added=found.added)
        one = replace(param, shape=found.shape_of_each(param.shape))
        return _FileStack(name, param, [self._matrix(name, one, found.parts_of(index), index)
                                        for index in range(found.matrices)])

    def _matrix(self, name: str, param: ParamSpec, parts: Sequence[Part], index: int = 0, *,
                added: float = 0.0) -> "_FileWeight":
        """A weight, or the matrix of this index where the parts are those of a stack."""
        pieces = []
        for part in parts:
            tensor, *scales = (t.slice(index) if part.stacked else t for t in (
                self._checkpoint.tensors[of] for of in (part.name, part.scales) if of))
            raw_RB, scales_RG = self._rows(tensor), self._rows(scales[0]) if scales else None
            if scales_RG is not None:
                tensor = replace(tensor, format="mxfp4", shape=(tensor.rows, 32 * scales_RG.shape[1]))
            pieces.append(_Piece(part=part, tensor=tensor, raw_RB=raw_RB, scales_RG=scales_RG))
        return _FileWeight(name, param, pieces, self._pool, None if added else self._uploads, added)

    def _rows(self, tensor: StoredTensor) -> NDArray[np.uint8]:
        """[R, B] view of the mapped file."""
        if tensor.file not in self._maps:
            self._maps[tensor.file] = map_file(tensor.file)
        flat = np.frombuffer(self._maps[tensor.file], np.uint8, tensor.num_bytes, tensor.offset_bytes)
        return flat.reshape(tensor.rows, tensor.row_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One part of a weight: the tensor's header and its mapped bytes, and those of MXFP4 scales beside it.
    tensor: as ggml has it, where it has scales."""

    part: Part
    tensor: StoredTensor
    raw_RB: NDArray[np.uint8]
    scales_RG: NDArray[np.uint8] | None

    def raw(self, rows: slice | list[int]) -> NDArray[np.uint8]:
        """The bytes of some rows."""
        return self.raw_RB[rows] if self.scales_RG is None else joined_mxfp4(
            self.raw_RB[rows], self.scales_RG[rows])

    def rows(self, rows: slice | list[int]) -> Tensor:
        """Some of the stored rows as numbers."""
        return decode(self.tensor, self.raw(rows))

    def read(self, rows: slice | list[int], room: Room) -> Tensor:
        """The same, in memory of `room`; rows in a run by the system's read, which no page fault slows."""
        if isinstance(rows, list) or self.tensor.format not in PLAIN:
            found = self.rows(rows)
            return room(found.nbytes).view(found.dtype).view(found.shape).copy_(found)
        run, each = range(*rows.indices(self.tensor.rows)), self.tensor.row_bytes
        raw = room(len(run) * each).numpy()
        left = raw.data
        with self.tensor.file.open("rb", buffering=0) as file:
            file.seek(self.tensor.offset_bytes + run.start * each)
            while left:
                got = file.readinto(left)
                if not got:
                    raise CheckpointError(f"{self.tensor.file} ends within tensor {self.tensor.name}: fetch "
                                          "it again")
                left = left[got:]
        return decode(self.tensor, raw.reshape(len(run), each))


class _FileWeight:
    """A SourceWeight of mapped tensors."""

    def __init__(self, name: str, param: ParamSpec, pieces: list[_Piece], pool: ThreadPoolExecutor,
                 uploads: Uploads | None, added: float) -> None:
        """uploads: what brings slices to the device, by the end of the loading; None: at once."""
        self.name = name
        self.param = param
        self._pieces = pieces
        self._pool = pool
        self._uploads = uploads
        self._added = added

    def blocks(self) -> tuple[GgufBlocks, ...] | None:
        """See SourceWeight. Rows that have to be put in order are copied, others are views."""
        if any(piece.tensor.format not in BLOCKS for piece in self._pieces):
            return None
        found = []
        for piece in self._pieces:
            tensor, part = piece.tensor, piece.part
            raw_RB = piece.raw(part.order(tensor.rows) if part.interleaved_heads else slice(None))
            if not finite_scales(tensor.format, raw_RB):
                raise _not_finite(tensor)
            found.append(GgufBlocks(kind=tensor.format, columns=tensor.shape[-1], raw_RB=raw_RB))
        return tuple(found)

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See SourceWeight."""
        out = torch.empty(self.param.shape, dtype=dtype, device=device)
        self.fill(out)
        return out

    def fill(self, out: Tensor) -> None:
        """Decode into memory of the weight's shape."""
        start = 0
        for piece in self._pieces:
            rows = piece.tensor.shape[-1] if piece.part.transposed else piece.tensor.rows
            self._fill(out[start:start + rows], piece)
            start += rows
        if self._added:
            out.add_(self._added)

    def _fill(self, out: Tensor, piece: _Piece) -> None:
        """Decode one tensor into its rows of a weight, slice by slice; quantized slices on several threads.
        A transposed tensor is decoded as a whole."""
        part, tensor = piece.part, piece.tensor
        order = part.order(len(out)) if part.interleaved_heads else None
        if part.transposed:
            whole = piece.rows(slice(None)).T
            _copy(out, whole if order is None else whole[order], tensor)
            return
        elements = _DECODED_ELEMENTS if tensor.quantized else _COPIED_ELEMENTS
        step = max(1, elements * tensor.rows // out.numel())

        def one(begin: int) -> None:
            rows = slice(begin, begin + step)
            _copy(out[rows], piece.rows(rows if order is None else order[rows]), tensor)

        if self._uploads is not None:
            for first in range(0, tensor.rows, step * _SENT_SLICES):
                end = min(first + step * _SENT_SLICES, tensor.rows)
                runs = [slice(begin, min(begin + step, end)) for begin in range(first, end, step)]
                self._uploads.put(out[first:end], [
                    (out[rows], partial(piece.read, rows if order is None else order[rows])) for rows in runs
                ], _not_finite(tensor))
            return
        for _ in (self._pool.map if tensor.quantized else map)(one, range(0, tensor.rows, step)):
            pass


class _FileStack:
    """A SourceStack."""

    def __init__(self, name: str, param: ParamSpec, matrices: list[_FileWeight]) -> None:
        self.name = name
        self.param = param
        self._matrices = matrices

    def matrices(self) -> list[_FileWeight]:
        """See SourceStack."""
        return self._matrices

    def blocks(self) -> None:
        """None: only its matrices have any."""
        return

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See SourceWeight."""
        out = torch.empty(self.param.shape, dtype=dtype, device=device)
        each = self._matrices[0].param.shape
        for matrix, to in zip(self._matrices, out.view(-1, *each), strict=True):
            matrix.fill(to)
        return out


def _copy(out: Tensor, found: Tensor, tensor: StoredTensor) -> None:
    """Into its place, refusing NaN and Inf."""
    out.copy_(found)
    if not math.isfinite(out.sum(dtype=torch.float32).item()) and not torch.isfinite(out).all():
        raise _not_finite(tensor)


def _not_finite(tensor: StoredTensor) -> CheckpointError:
    return CheckpointError(f"{tensor.file}: tensor {tensor.name} holds NaN or Inf: the file is damaged or "
                           "was converted badly; fetch or convert it again")
