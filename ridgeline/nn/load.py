"""Checkpoint -> weights in memory, tensor by tensor from memory maps, each packed as a policy says.

Anonymous memory stays within the final weights and one tensor: files are mapped, rows are decoded in slices
straight into their place. Knows no scheme (quant/ does) and no model family (models/ does). Legend: R rows, B
bytes of a row.
"""

import math
import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.base.errors import CheckpointError
from ridgeline.models.checkpoint import Checkpoint
from ridgeline.models.files.stored import StoredTensor, map_file
from ridgeline.models.sources import Part, row_order
from ridgeline.nn.dummy import RandomWeights
from ridgeline.nn.progress import Progress
from ridgeline.nn.repack import RepackCache
from ridgeline.nn.rows import SCALES, decode, finite_scales
from ridgeline.quant.format import Dense, GgufBlocks, Packed, Packing, SourceWeight
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.model import ModelSpec

Weights = dict[str, Tensor | Packed]
Policy = Callable[[str, ParamSpec], Packing[Packed | Tensor]]
# A slice of a tensor: decoded ones stay in a core's cache and below what torch splits over threads.
_DECODED_ELEMENTS, _COPIED_ELEMENTS = 1 << 15, 1 << 22


def dense(dtype: torch.dtype) -> Policy:
    """The policy that holds every weight as a plain tensor of one dtype."""
    packing = Dense(dtype)
    return lambda name, param: packing


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
    with (RepackCache(None if checkpoint.dummy else cache_dir, checkpoint, costly) as cache,
          ThreadPoolExecutor(torch.get_num_threads(), "decode") as pool,
          Progress("loading weights", sum(job[1].num_elements for job in jobs), shown=progress) as bar):
        reader = RandomWeights(seed) if checkpoint.dummy else _Files(checkpoint, pool)
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


def _jobs(spec: ModelSpec, policy: Policy) -> Iterator[tuple[str, ParamSpec, Packing[Packed | Tensor], str]]:
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

    def __init__(self, checkpoint: Checkpoint, pool: ThreadPoolExecutor) -> None:
        self._checkpoint = checkpoint
        self._pool = pool
        self._maps: dict[Path, mmap.mmap] = {}

    def weight(self, name: str, param: ParamSpec, source: str) -> SourceWeight:
        tensors, found = self._checkpoint.tensors, self._checkpoint.sources[source]
        parts = [(part, tensors[part.name]) for part in found.parts]
        mapped = [(part, tensor, self._rows(tensor)) for part, tensor in parts]
        return _FileWeight(name, param, mapped, self._pool, found.added)

    def _rows(self, tensor: StoredTensor) -> NDArray[np.uint8]:
        """[R, B] view of the mapped file."""
        if tensor.file not in self._maps:
            self._maps[tensor.file] = map_file(tensor.file)
        flat = np.frombuffer(self._maps[tensor.file], np.uint8, tensor.num_bytes, tensor.offset_bytes)
        return flat.reshape(tensor.rows, tensor.row_bytes)


class _FileWeight:
    """A SourceWeight of mapped tensors."""

    def __init__(self, name: str, param: ParamSpec,
                 parts: list[tuple[Part, StoredTensor, NDArray[np.uint8]]], pool: ThreadPoolExecutor,
                 added: float) -> None:
        self.name = name
        self.param = param
        self._added = added
        self._parts = parts
        self._pool = pool

    def blocks(self) -> tuple[GgufBlocks, ...] | None:
        """See SourceWeight. Rows that have to be put in order are copied, others are views."""
        if any(tensor.format not in SCALES for _, tensor, _ in self._parts):
            return None
        found = []
        for part, tensor, raw_RB in self._parts:
            if not finite_scales(tensor.format, raw_RB):
                raise _not_finite(tensor)
            if part.interleaved_heads:
                raw_RB = raw_RB[row_order(tensor.rows, part.interleaved_heads)]
            found.append(GgufBlocks(kind=tensor.format, columns=tensor.shape[-1], raw_RB=raw_RB))
        return tuple(found)

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See SourceWeight."""
        out = torch.empty(self.param.shape, dtype=dtype, device=device)
        start = 0
        for part, tensor, raw_RB in self._parts:
            self._fill(out[start:start + tensor.rows], part, tensor, raw_RB)
            start += tensor.rows
        return out.add_(self._added) if self._added else out

    def _fill(self, out: Tensor, part: Part, tensor: StoredTensor, raw_RB: NDArray[np.uint8]) -> None:
        """Decode one tensor into its rows of a weight, slice by slice; quantized slices on several
        threads."""
        order = np.array(row_order(tensor.rows, part.interleaved_heads)) if part.interleaved_heads else None
        elements = _DECODED_ELEMENTS if tensor.quantized else _COPIED_ELEMENTS
        step = max(1, elements * tensor.rows // out.numel())

        def one(begin: int) -> None:
            rows = slice(begin, begin + step)
            to = out[rows].copy_(decode(tensor, raw_RB[rows] if order is None else raw_RB[order[rows]]))
            if not math.isfinite(to.sum(dtype=torch.float32).item()) and not torch.isfinite(to).all():
                raise _not_finite(tensor)

        for _ in (self._pool.map if tensor.quantized else map)(one, range(0, tensor.rows, step)):
            pass


def _not_finite(tensor: StoredTensor) -> CheckpointError:
    return CheckpointError(f"{tensor.file}: tensor {tensor.name} holds NaN or Inf: the file is damaged or "
                           "was converted badly; fetch or convert it again")
