"""Causal attention by the C kernel: qk-norm, rotation, cache write and softmax in one call.

Legend: T tokens, S sequences, M query heads, G KV heads, D head width, R rotary width, N arena pages,
P pages of a sequence. The torch twin is blocks/attention/reference.py.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.kernels.cpu.native import Native
from ridgeline.kernels.cpu.structs import ATTEND, Attention
from ridgeline.kernels.cpu.tape import CUT_BELOW, KEY_CHUNK, MAX_GROUP, chunks_cut, passes
from ridgeline.kernels.cpu.workspace import workspace

_MAX_DIM, HEAD = 256, 8  # of attention.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Which tokens attend together: a prompt chunk's, a few at a time, share each pass over their keys.

    sequence_T int32: the token's row of the block tables, None where token i has row i. start int32
    [runs + 1]: first token of each run.
    """

    sequence_T: Tensor | None
    start: Tensor


def runs_of(counts: NDArray[np.int64], most: int, sequences: NDArray[np.int64] | None = None) -> Runs | None:
    """Runs of a step whose rows have `counts` tokens each; None when each token is a run.

    most: tokens of a run. sequences: how many of the first rows, with a token each, every sequence has that
    verifies drafts or decodes; None where each has one.
    """
    together = counts if sequences is None else np.concatenate([sequences, counts[sequences.sum():]])
    if (together == 1).all():
        return None
    ends = together.cumsum()
    starts = [np.arange(end - count, end, most) for count, end in zip(together, ends, strict=True)]
    start = np.concatenate([*starts, ends[-1:]]).astype(np.int32)
    row_T = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return Runs(sequence_T=None if len(row_T) == len(counts) else torch.from_numpy(row_T),
                start=torch.from_numpy(start))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """What all layers share in a step.

    cosine_TR, sine_TR: float32; the first half of the cosines and the second of the sines are read.
    longest: the last position. runs: None when each token attends by itself.
    """

    position_T: Tensor
    table_SP: Tensor
    cosine_TR: Tensor
    sine_TR: Tensor
    longest: int
    runs: Runs | None = None

    def with_room(self, max_rows: int) -> "TokenRows":
        """The same tokens, a row each, in memory of their own that holds up to max_rows."""
        def roomy(tensor: Tensor, most: int = max_rows) -> Tensor:
            return torch.empty(most, *tensor.shape[1:], dtype=tensor.dtype)[: len(tensor)].copy_(tensor)

        assert len(self.table_SP) == len(self.position_T)
        return TokenRows(position_T=roomy(self.position_T), table_SP=roomy(self.table_SP),
                         cosine_TR=roomy(self.cosine_TR), sine_TR=roomy(self.sine_TR), longest=self.longest,
                         runs=Runs(sequence_T=None, start=roomy(self._starts(), max_rows + 1)))

    def receive(self, other: "TokenRows") -> None:
        """Take another step's rows into memory made by `with_room`."""
        assert self.runs is not None
        for to, given in ((self.position_T, other.position_T), (self.table_SP, other.table_SP),
                          (self.cosine_TR, other.cosine_TR), (self.sine_TR, other.sine_TR),
                          (self.runs.start, other._starts())):
            assert to.shape[1:] == given.shape[1:], "block tables of all steps have one width"
            to.as_strided(given.shape, to.stride()).copy_(given)

    def _starts(self) -> Tensor:
        """First token of each run, and the end."""
        if self.runs is not None:
            return self.runs.start
        return torch.arange(len(self.position_T) + 1, dtype=torch.int32)


def fits(entries: Tensor, activations: torch.dtype) -> bool:
    """True when the kernel can serve a cache [N, tokens_per_page, 2, G, D] and activations of this dtype."""
    return (
        activations is torch.float32
        and entries.dtype in (torch.float32, torch.bfloat16)
        and entries.device.type == "cpu"
        and entries.shape[1] % 8 == 0
        and entries.shape[4] % 8 == 0
        and entries.shape[4] <= _MAX_DIM
    )


def attention_bytes(rows: int, heads: int, dim: int, *, threads: int, chunks: int) -> int:
    """Workspace of a call: turned queries, and the parts of rows that are cut (more units are never cut)."""
    return 4 * (rows * heads * dim + CUT_BELOW * threads * chunks * MAX_GROUP * (dim + HEAD))


def fused_attention(
    native: Native,
    qkv_TND: Tensor,
    entries: Tensor,
    rows: TokenRows,
    *,
    scale: float,
    window: int | None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """[T, M, D] float32. qkv_TND holds queries, keys and values before norm and rotation; N there is M + 2 G.

    Writes the new keys and values. Keys that a token does not see may hold anything, NaN included. sinks [M]
    float32: see blocks/attention/spec.py.
    """
    num_rows, heads_all, dim = qkv_TND.shape
    kv_heads, held, threads = entries.shape[3], native.room(num_rows), torch.get_num_threads()
    heads = heads_all - 2 * kv_heads
    out = torch.empty(held, heads, dim)[:num_rows]
    runs, row_T = rows.runs, None if rows.runs is None else rows.runs.sequence_T
    pieces = num_rows if runs is None else len(runs.start) - 1
    chunks = chunks_cut(pieces * kv_heads * passes(heads, kv_heads), rows.longest, threads)
    most = chunks if native.tape is None else rows.table_SP.shape[1] * entries.shape[1] // KEY_CHUNK + 1
    room = workspace(native, ATTEND, attention_bytes(held, heads, dim, threads=threads, chunks=most))
    rotary = rows.cosine_TR.shape[1]
    call = Attention(
        rows=num_rows, heads=heads, kv_heads=kv_heads, head_dim=dim, rotary_dim=rotary,
        bf16=entries.dtype is torch.bfloat16, block_size=entries.shape[1], window=window or 0,
        threads=threads, scale=scale, eps=eps, chunks=chunks, qkv=qkv_TND.data_ptr(),
        cosine=rows.cosine_TR.data_ptr(),
        sine=rows.sine_TR.data_ptr() + 2 * rotary, q_norm=None if q_norm is None else q_norm.data_ptr(),
        k_norm=None if k_norm is None else k_norm.data_ptr(),
        sinks=None if sinks is None else sinks.data_ptr(), position=rows.position_T.data_ptr(),
        table=rows.table_SP.data_ptr(), sequence=None if row_T is None else row_T.data_ptr(),
        run_start=None if runs is None else runs.start.data_ptr(), keys=entries.data_ptr(),
        values=entries.data_ptr() + entries.element_size() * entries.stride(2), out=out.data_ptr(),
        queries=room.data_ptr(), partial=room.data_ptr() + 4 * held * heads * dim,
        qkv_stride=qkv_TND.stride(0), angle_stride=rows.cosine_TR.stride(0),
        table_stride=rows.table_SP.stride(0), page_stride=entries.stride(0), slot_stride=entries.stride(1),
        head_stride=entries.stride(3))
    native.attend(call, (qkv_TND, rows, q_norm, k_norm, sinks, entries, out, room))
    return out
