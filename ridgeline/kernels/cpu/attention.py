"""Decode attention by the C kernel: qk-norm, rotation, cache write and softmax in one call.

Legend: S rows of one token each, M query heads, G KV heads, D head width, R rotary width, N arena pages,
P pages of a row. The torch twin is blocks/attention/reference.py.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.kernels.cpu.native import Attention, Native

_CHUNK, _MAX_DIM, _MAX_GROUP, _HEAD = 256, 256, 8, 8  # KEY_CHUNK, MAX_DIM, MAX_GROUP, HEAD of attention.c
_ROWS_CUT = 4  # with fewer work items a thread, long rows are cut over threads


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
    kv_heads = entries.shape[3]
    heads = heads_all - 2 * kv_heads
    out = torch.empty(num_rows, heads, dim)
    passes = -(-heads // kv_heads // _MAX_GROUP)
    items, chunks, threads = (
        num_rows * kv_heads * passes,
        rows.longest // _CHUNK + 1,
        torch.get_num_threads(),
    )
    cut = chunks if threads > 1 and chunks > 1 and items < _ROWS_CUT * threads else 0
    room = torch.empty(num_rows * heads * dim + items * cut * _MAX_GROUP * (dim + _HEAD))
    rotary = rows.cosine_SR.shape[1]
    size = entries.element_size()
    call = Attention(
        num_rows,
        heads,
        kv_heads,
        dim,
        rotary,
        entries.dtype is torch.bfloat16,
        entries.shape[1],
        window or 0,
        threads,
        scale,
        eps,
        cut,
        qkv_SND.data_ptr(),
        rows.cosine_SR.data_ptr(),
        rows.sine_SR.data_ptr() + 2 * rotary,
        None if q_norm is None else q_norm.data_ptr(),
        None if k_norm is None else k_norm.data_ptr(),
        rows.position_S.data_ptr(),
        rows.table_SP.data_ptr(),
        entries.data_ptr(),
        entries.data_ptr() + size * entries.stride(2),
        out.data_ptr(),
        room.data_ptr(),
        room.data_ptr() + 4 * num_rows * heads * dim,
        qkv_SND.stride(0),
        rows.cosine_SR.stride(0),
        rows.table_SP.stride(0),
        entries.stride(0),
        entries.stride(1),
        entries.stride(3),
    )
    native.library.rl_attend(ctypes.byref(call))
    return out
