"""Triton kernels of decode linears: out = f(x @ W.T) for one row, and for up to 128.

Legend: M rows (tokens), K inputs, N outputs; BM, BN, BK a tile; SPLIT parts of K. Constexpr flags choose what
is fused, the same in every form:
  NORM   x is RMS-normed on its way in; the row's scale is applied to the sum, since it does not depend on k
  GATED  the weight holds gate's N rows, then up's; out = silu(gate) * up
  BIAS   N entries are added (2 N when GATED), before the gate
  ADD    a residual is added last
PDL (programmatic dependent launch): 0 off; 1 the next kernel may start once this one has read its inputs; 2
once it has begun; 3 when it has ended. Nothing but weights is touched before gdc_wait, which returns when all
kernels before are complete. SPLIT > 1: every part writes its sums; the one that arrives last adds all of them
in order, so that the result does not depend on who that is, and sets the lock back to zero.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _dot(w, x, acc, INTERPRET: tl.constexpr):
    if INTERPRET:
        return acc + tl.dot(w.to(tl.float32), x.to(tl.float32))
    return tl.dot(w, x, acc, input_precision="ieee")


@triton.jit
def _merged(y, y2, sq, part_ptr, lock_ptr, tile, split, BM: tl.constexpr, BN: tl.constexpr,
            SPLIT: tl.constexpr,
            NORM: tl.constexpr, GATED: tl.constexpr):
    """(last, y, y2, sq): the sums over all parts for the part that arrives last; the others are done.

    A part's memory: [y | y2 when GATED | sq], BN * BM floats each, BM for sq.
    """
    last = True
    if SPLIT > 1:
        HALVES: tl.constexpr = 2 if GATED else 1
        SIZE: tl.constexpr = HALVES * BN * BM + BM
        m = tl.arange(0, BM)
        at = tl.arange(0, BN)[:, None] * BM + m[None, :]
        mine = part_ptr + (tile * SPLIT + split) * SIZE
        tl.store(mine + at, y)
        if GATED:
            tl.store(mine + BN * BM + at, y2)
        if NORM:
            tl.store(mine + HALVES * BN * BM + m, sq)
        tl.debug_barrier()
        last = tl.atomic_add(lock_ptr + tile, 1, sem="acq_rel") == SPLIT - 1
        if last:
            y = tl.zeros((BN, BM), tl.float32)
            y2 = tl.zeros((BN, BM), tl.float32)
            sq = tl.zeros((BM,), tl.float32)
            for s in range(SPLIT):
                other = part_ptr + (tile * SPLIT + s) * SIZE
                y += tl.load(other + at, cache_modifier=".cg")
                if GATED:
                    y2 += tl.load(other + BN * BM + at, cache_modifier=".cg")
                if NORM:
                    sq += tl.load(other + HALVES * BN * BM + m, cache_modifier=".cg")
            tl.store(lock_ptr + tile, 0)
    return last, y, y2, sq


@triton.jit
def _finish(y, y2, sq, out_ptr, res_ptr, bias_ptr, n, m, M, N, stride_out, stride_res, eps, K: tl.constexpr,
            NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr):
    """What follows the product. y, y2 [n, m] float32; sq [m]: sums of squares of x."""
    inside = (n < N)[:, None] & (m < M)[None, :]
    if NORM:
        scale = tl.rsqrt(sq / K + eps)[None, :]
        y = y * scale
        if GATED:
            y2 = y2 * scale
    if BIAS:
        y += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
        if GATED:
            y2 += tl.load(bias_ptr + N + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    if GATED:
        y = y / (1.0 + tl.exp(-y)) * y2
    if ADD:
        y += tl.load(res_ptr + m[None, :] * stride_res + n[:, None], mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + m[None, :] * stride_out + n[:, None], y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gemv_kernel(x_ptr, w_ptr, out_ptr, g_ptr, res_ptr, bias_ptr, N, eps,
                K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr,
                ADD: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr):
    """One row, by float32 multiply-adds. The first weights are in flight before the kernel before has ended,
    and each tile's loads before the sums of the tile before it."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    n_ok = n < N
    k = tl.arange(0, BK)
    EVEN: tl.constexpr = K % BK == 0
    row = w_ptr + n.to(tl.int64)[:, None] * K
    row2 = w_ptr + (n + N).to(tl.int64)[:, None] * K
    ok = n_ok[:, None] if EVEN else n_ok[:, None] & (k < K)[None, :]
    w = tl.load(row + k[None, :], mask=ok, other=0.0, eviction_policy="evict_first")
    if GATED:
        u = tl.load(row2 + k[None, :], mask=ok, other=0.0, eviction_policy="evict_first")
    if PDL == 2:
        gdc_launch_dependents()
    if PDL > 0:
        gdc_wait()
    acc = tl.zeros((BN, BK), tl.float32)
    acc2 = tl.zeros((BN, BK), tl.float32)
    squares = tl.zeros((BK,), tl.float32)
    for k0 in tl.static_range(0, K, BK):
        kk = k0 + k
        x = tl.load(x_ptr + kk, mask=kk < K, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if NORM:
            squares += x * x
            x = x * tl.load(g_ptr + kk, mask=kk < K, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if k0 + BK < K:
            ok = n_ok[:, None] if EVEN else n_ok[:, None] & (kk + BK < K)[None, :]
            w_next = tl.load(row + (kk + BK)[None, :], mask=ok, other=0.0, eviction_policy="evict_first")
            if GATED:
                u_next = tl.load(row2 + (kk + BK)[None, :], mask=ok, other=0.0, eviction_policy="evict_first")
        acc += w.to(tl.float32) * x[None, :]
        if GATED:
            acc2 += u.to(tl.float32) * x[None, :]
        if k0 + BK < K:
            w = w_next
            if GATED:
                u = u_next
    if PDL == 1:
        gdc_launch_dependents()
    sq = tl.sum(squares, 0) + tl.zeros((1,), tl.float32)
    _finish(tl.sum(acc, 1)[:, None], tl.sum(acc2, 1)[:, None], sq, out_ptr, res_ptr, bias_ptr, n,
            tl.arange(0, 1),
            1, N, N, N, eps, K, NORM, GATED, ADD, BIAS)


@triton.jit
def _block(step, tile, split, KS: tl.constexpr, BK: tl.constexpr, SPREAD: tl.constexpr):
    """Where in K the tile is after `step` inputs of its part."""
    k0 = step
    if SPREAD > 0:
        k0 += tile * SPREAD % (KS // BK) * BK
        k0 = tl.where(k0 < KS, k0, k0 - KS)
    return split * KS + k0


@triton.jit(do_not_specialize=["M"])
def dot_kernel(x_ptr, w_ptr, out_ptr, g_ptr, res_ptr, bias_ptr, part_ptr, lock_ptr, M, N, eps,
               stride_x, stride_out, stride_res,
               K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
               TM: tl.constexpr, SPREAD: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr,
               ADD: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr, INTERPRET: tl.constexpr):
    """TM tiles of BM rows on the tensor cores, the weight as the left operand: its rows fill the long
    side. Neighbouring tiles begin SPREAD blocks of K apart."""
    tile = tl.program_id(0)
    split = tl.program_id(1)
    n = tile // TM * BN + tl.arange(0, BN)
    m = tile % TM * BM + tl.arange(0, BM)
    n_ok = n < N
    m_ok = m < M
    KS: tl.constexpr = (K + SPLIT * BK - 1) // (SPLIT * BK) * BK
    EVEN: tl.constexpr = KS * SPLIT == K
    row = w_ptr + n.to(tl.int64)[:, None] * K
    row2 = w_ptr + (n + N).to(tl.int64)[:, None] * K
    if PDL == 2:
        gdc_launch_dependents()
    if PDL > 0:
        gdc_wait()
    y = tl.zeros((BN, BM), tl.float32)
    y2 = tl.zeros((BN, BM), tl.float32)
    sq = tl.zeros((BM,), tl.float32)
    for step in range(0, KS, BK):
        k = _block(step, tile, split, KS, BK, SPREAD) + tl.arange(0, BK)
        w_ok = n_ok[:, None] if EVEN else n_ok[:, None] & (k < K)[None, :]
        x_ok = m_ok[None, :] if EVEN else m_ok[None, :] & (k < K)[:, None]
        w = tl.load(row + k[None, :], mask=w_ok, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + m[None, :] * stride_x + k[:, None], mask=x_ok, other=0.0,
                    eviction_policy="evict_last")
        if NORM:
            xf = x.to(tl.float32)
            sq += tl.sum(xf * xf, 0)
            g = tl.load(g_ptr + k, mask=k < K, other=0.0, eviction_policy="evict_last").to(tl.float32)
            x = (xf * g[:, None]).to(x.dtype)
        y = _dot(w, x, y, INTERPRET)
        if GATED:
            u = tl.load(row2 + k[None, :], mask=w_ok, other=0.0, eviction_policy="evict_first")
            y2 = _dot(u, x, y2, INTERPRET)
    if PDL == 1:
        gdc_launch_dependents()
    last, y, y2, sq = _merged(y, y2, sq, part_ptr, lock_ptr, tile, split, BM, BN, SPLIT, NORM, GATED)
    if last:
        _finish(y, y2, sq, out_ptr, res_ptr, bias_ptr, n, m, M, N, stride_out, stride_res, eps, K, NORM,
                GATED, ADD,
                BIAS)


@triton.jit(do_not_specialize=["M"])
def tma_kernel(x_desc, w_desc, out_ptr, res_ptr, bias_ptr, part_ptr, lock_ptr, M, N, stride_out, stride_res,
               K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
               TM: tl.constexpr, SPREAD: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
               BIAS: tl.constexpr, PDL: tl.constexpr, INTERPRET: tl.constexpr):
    """dot_kernel without a norm, fed by the tensor memory accelerator, which gives zeros outside of x and W.

    A gate tile that runs over its last row reads up's first rows, whose sums are never stored.
    """
    tile = tl.program_id(0)
    split = tl.program_id(1)
    first_n = tile // TM * BN
    first_m = tile % TM * BM
    KS: tl.constexpr = (K + SPLIT * BK - 1) // (SPLIT * BK) * BK
    if PDL == 2:
        gdc_launch_dependents()
    if PDL > 0:
        gdc_wait()
    y = tl.zeros((BN, BM), tl.float32)
    y2 = tl.zeros((BN, BM), tl.float32)
    sq = tl.zeros((BM,), tl.float32)
    for step in range(0, KS, BK):
        k0 = _block(step, tile, split, KS, BK, SPREAD)
        w = w_desc.load([first_n, k0])
        x = x_desc.load([first_m, k0]).T
        y = _dot(w, x, y, INTERPRET)
        if GATED:
            u = w_desc.load([N + first_n, k0])
            y2 = _dot(u, x, y2, INTERPRET)
    if PDL == 1:
        gdc_launch_dependents()
    last, y, y2, sq = _merged(y, y2, sq, part_ptr, lock_ptr, tile, split, BM, BN, SPLIT, False, GATED)
    if last:
        n, m = first_n + tl.arange(0, BN), first_m + tl.arange(0, BM)
        _finish(y, y2, sq, out_ptr, res_ptr, bias_ptr, n, m, M, N, stride_out, stride_res, 0.0, K, False,
                GATED, ADD, BIAS)


@triton.jit
def rms_norm_kernel(x_ptr, g_ptr, out_ptr, eps, stride_x, K: tl.constexpr, KP: tl.constexpr,
                    PDL: tl.constexpr):
    """One row a program, KP >= K. For linears that are faster with their norm apart."""
    row = tl.program_id(0)
    k = tl.arange(0, KP)
    g = tl.load(g_ptr + k, mask=k < K, other=0.0).to(tl.float32)
    if PDL == 2:
        gdc_launch_dependents()
    if PDL > 0:
        gdc_wait()
    x = tl.load(x_ptr + row * stride_x + k, mask=k < K, other=0.0).to(tl.float32)
    if PDL == 1:
        gdc_launch_dependents()
    y = x * tl.rsqrt(tl.sum(x * x, 0) / K + eps) * g
    tl.store(out_ptr + row * K + k, y.to(out_ptr.dtype.element_ty), mask=k < K)


@triton.jit
def silu_mul_kernel(x_ptr, out_ptr, stride, N, XB: tl.constexpr):
    """silu(first half) * second half of each row of x, for products that are too large for these kernels."""
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * XB + tl.arange(0, XB)
    gate = tl.load(x_ptr + t * stride + n, mask=n < N, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + t * stride + N + n, mask=n < N, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + t * N + n, y.to(out_ptr.dtype.element_ty), mask=n < N)
