"""The Triton kernels of experts' products. Legend: as of the door; BM pairs, BN outputs, BK inputs a tile."""

import triton
import triton.language as tl

from ridgeline.kernels.decode_linear.triton import _dot


@triton.jit
def _chosen(chosen_ptr, lens_ptr, p, num, TOP: tl.constexpr, IDLE: tl.constexpr):
    """The pairs' experts; more than any for those of idle tokens and behind the last."""
    ok = p < num
    if IDLE:
        ok = ok & (tl.load(lens_ptr + p // TOP, mask=ok, other=0) > 0)
    return tl.load(chosen_ptr + p, mask=ok, other=1 << 30)


@triton.jit(do_not_specialize=["num"])
def deal_kernel(chosen_ptr, lens_ptr, order_ptr, edges_ptr, num, BP: tl.constexpr, TOP: tl.constexpr,
                IDLE: tl.constexpr):
    """One program an expert, and one for the end: edges [E + 1], where each expert's pairs begin; order: the
    pairs, those of an expert beside one another, in order. IDLE: a token of lens 0 has none."""
    expert = tl.program_id(0)
    before = 0
    for p0 in range(0, num, BP):
        p = p0 + tl.arange(0, BP)
        before += tl.sum((_chosen(chosen_ptr, lens_ptr, p, num, TOP, IDLE) < expert).to(tl.int32), 0)
    tl.store(edges_ptr + expert, before)
    for p0 in range(0, num, BP):
        p = p0 + tl.arange(0, BP)
        mine = (_chosen(chosen_ptr, lens_ptr, p, num, TOP, IDLE) == expert).to(tl.int32)
        tl.store(order_ptr + before + tl.cumsum(mine, 0) - 1, p, mask=mine > 0)
        before += tl.sum(mine, 0)


@triton.jit
def experts_kernel(x_ptr, w_ptr, bias_ptr, factor_ptr, out_ptr, order_ptr, edges_ptr, N, stride_x,
                   K: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, TOP: tl.constexpr, BM: tl.constexpr,
                   BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr, FACTOR: tl.constexpr,
                   INTERPRET: tl.constexpr):
    """Programs (tile of outputs, block of an expert's pairs). x: row pair // TOP; out: row pair. EP >= E."""
    block = tl.program_id(1)
    each = tl.arange(0, EP)
    begin = tl.load(edges_ptr + each, mask=each < E, other=0)
    blocks = (tl.load(edges_ptr + each + 1, mask=each < E, other=0) - begin + BM - 1) // BM
    done = tl.cumsum(blocks, 0) <= block  # those whose blocks all come before
    expert = tl.sum((done & (each < E)).to(tl.int64), 0)
    if expert < E:
        earlier = tl.sum(tl.where(done, blocks, 0), 0)
        at = tl.load(edges_ptr + expert) + (block - earlier) * BM + tl.arange(0, BM)
        ok = at < tl.load(edges_ptr + expert + 1)
        pair = tl.load(order_ptr + at, mask=ok, other=0).to(tl.int64)
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        n_ok = n < N
        x_row = x_ptr + (pair // TOP)[:, None] * stride_x
        w_row = w_ptr + (expert * N + n)[None, :] * K
        acc = tl.zeros((BM, BN), tl.float32)
        for k0 in range(0, K, BK):
            k = k0 + tl.arange(0, BK)
            x = tl.load(x_row + k[None, :], mask=ok[:, None] & (k < K)[None, :], other=0.0)
            w = tl.load(w_row + k[:, None], mask=n_ok[None, :] & (k < K)[:, None], other=0.0)
            acc = _dot(x, w, acc, INTERPRET)
        if BIAS:
            acc += tl.load(bias_ptr + expert * N + n, mask=n_ok, other=0.0).to(tl.float32)[None, :]
        if FACTOR:
            acc *= tl.load(factor_ptr + pair, mask=ok, other=0.0)[:, None]
        to = out_ptr + pair[:, None] * N + n[None, :]
        tl.store(to, acc.to(out_ptr.dtype.element_ty), mask=ok[:, None] & n_ok[None, :])
