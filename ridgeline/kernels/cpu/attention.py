"""Decode attention by the C kernel: qk-norm, rotation, cache write and softmax in one call.

Legend: S rows of one token each, M query heads, G KV heads, D head width, R rotary width, N arena pages,
P pages of a row. The torch twin is blocks/attention/reference.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.kernels.cpu.native import Native
from ridgeline.kernels.cpu.structs import Attention
from ridgeline.kernels.cpu.tape import CUT_BELOW, KEY_CHUNK, MAX_GROUP, chunks_cut, passes

_MAX_DIM, HEAD = 256, 8  # of attention.c


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """What all layers share in a step.

    cosine_SR, sine_SR: float32; the first half of the cosines and the second of the sines are read.
    """

    position_S: Tensor
    table_SP: Tensor
    cosine_SR: Tensor
    sine_SR: Tensor
    longest: int

    def with_room(self, max_rows: int) -> "DecodeRows":
        """The same rows in memory of their own that holds up to max_rows."""
        def roomy(tensor: Tensor) -> Tensor:
            return torch.empty(max_rows, *tensor.shape[1:], dtype=tensor.dtype)[: len(tensor)].copy_(tensor)

        return DecodeRows(position_S=roomy(self.position_S), table_SP=roomy(self.table_SP),
                          cosine_SR=roomy(self.cosine_SR), sine_SR=roomy(self.sine_SR), longest=self.longest)

    def receive(self, other: "DecodeRows") -> None:
        """Take another step's rows into memory made by `with_room`."""
        for to, given in ((self.position_S, other.position_S), (self.table_SP, other.table_SP),
                          (self.cosine_SR, other.cosine_SR), (self.sine_SR, other.sine_SR)):
            assert to.shape[1:] == given.shape[1:], "block tables of all steps have one width"
            to.as_strided(given.shape, to.stride()).copy_(given)


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


def decode_attention(
    native: Native,
    qkv_SND: Tensor,
    entries: Tensor,
    rows: DecodeRows,
    *,
    scale: float,
    window: int | None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """[S, M, D] float32. qkv_SND holds queries, keys and values before norm and rotation; N there is M + 2 G.

    Writes the new keys and values. Keys that a row does not see may hold anything, NaN included.
    """
    num_rows, heads_all, dim = qkv_SND.shape
    kv_heads, held, threads = entries.shape[3], native.room(num_rows), torch.get_num_threads()
    heads = heads_all - 2 * kv_heads
    out = torch.empty(held, heads, dim)[:num_rows]
    units = num_rows * kv_heads * passes(heads, kv_heads)
    chunks = chunks_cut(units, rows.longest, threads)
    most = chunks if native.tape is None else rows.table_SP.shape[1] * entries.shape[1] // KEY_CHUNK + 1
    queries = torch.empty(held * heads * dim)
    partial = torch.empty(CUT_BELOW * threads * most * MAX_GROUP * (dim + HEAD))  # more units are never cut
    rotary = rows.cosine_SR.shape[1]
    call = Attention(
        rows=num_rows, heads=heads, kv_heads=kv_heads, head_dim=dim, rotary_dim=rotary,
        bf16=entries.dtype is torch.bfloat16, block_size=entries.shape[1], window=window or 0,
        threads=threads, scale=scale, eps=eps, chunks=chunks, qkv=qkv_SND.data_ptr(),
        cosine=rows.cosine_SR.data_ptr(),
        sine=rows.sine_SR.data_ptr() + 2 * rotary, q_norm=None if q_norm is None else q_norm.data_ptr(),
        k_norm=None if k_norm is None else k_norm.data_ptr(), position=rows.position_S.data_ptr(),
        table=rows.table_SP.data_ptr(), keys=entries.data_ptr(),
        values=entries.data_ptr() + entries.element_size() * entries.stride(2), out=out.data_ptr(),
        queries=queries.data_ptr(), partial=partial.data_ptr(), qkv_stride=qkv_SND.stride(0),
        angle_stride=rows.cosine_SR.stride(0), table_stride=rows.table_SP.stride(0),
        page_stride=entries.stride(0), slot_stride=entries.stride(1), head_stride=entries.stride(3))
    native.attend(call, (qkv_SND, rows, q_norm, k_norm, entries, out, queries, partial))
    return out
