"""Triton kernels before and after the layers of a step. All are launched without PDL: a step's full barriers.

Legend: S rows of a step, X places of a row's tables, R rotary width, V vocabulary, B blocks of a row's
logits.
"""

import triton
import triton.language as tl


@triton.jit
def gather_kernel(
    staged_ptr,
    last_ptr,
    table_ptr,
    ids_ptr,
    positions_ptr,
    reach_ptr,
    lens_ptr,
    out_ptr,
    num_rows,
    width,
    stride_table,
    XB: tl.constexpr,
):
    """Place s is runner row staged[0, s], at position staged[1, s] (below 0: idle), with token staged[2, s]
    (below 0: the one that the row sampled last) and reach staged[3, s]."""
    s = tl.program_id(0)
    row = tl.load(staged_ptr + s).to(tl.int64)
    position = tl.load(staged_ptr + num_rows + s)
    token = tl.load(staged_ptr + 2 * num_rows + s).to(tl.int64)
    reach = tl.load(staged_ptr + 3 * num_rows + s).to(tl.int64)
    tl.store(ids_ptr + s, tl.where(token < 0, tl.load(last_ptr + row), token))
    tl.store(positions_ptr + s, tl.maximum(position, 0).to(tl.int64))
    tl.store(reach_ptr + s, reach)
    tl.store(lens_ptr + s, position + 1)
    for x0 in range(0, width, XB):
        x = x0 + tl.arange(0, XB)
        page = tl.load(table_ptr + row * stride_table + x, mask=x < width, other=0)
        tl.store(out_ptr + s.to(tl.int64) * width + x, page, mask=x < width)


@triton.jit
def angles_kernel(positions_ptr, freq_ptr, cos_ptr, sin_ptr, factor, R: tl.constexpr, RP: tl.constexpr):
    """cos and sin of position * frequency of each pair, twice over; the sines of the first half negated."""
    s = tl.program_id(0)
    r = tl.arange(0, RP)
    angle = tl.load(positions_ptr + s).to(tl.float32) * tl.load(freq_ptr + r % (R // 2))
    sine = tl.sin(angle) * factor
    tl.store(cos_ptr + s * R + r, tl.cos(angle) * factor, mask=r < R)
    tl.store(sin_ptr + s * R + r, tl.where(r < R // 2, -sine, sine), mask=r < R)


@triton.jit
def best_of_block_kernel(logits_ptr, value_ptr, index_ptr, stride, V, num_blocks, XB: tl.constexpr):
    """The first of a block's highest logits; +inf as value where one is not finite."""
    s = tl.program_id(0)
    block = tl.program_id(1)
    v = block * XB + tl.arange(0, XB)
    x = tl.load(logits_ptr + s.to(tl.int64) * stride + v, mask=v < V, other=-3.0e38)
    broken = tl.max((tl.abs(x) < float("inf")).to(tl.int32) ^ 1, 0)
    x = tl.where(tl.abs(x) < float("inf"), x, -3.0e38)
    best, at = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(value_ptr + s * num_blocks + block, tl.where(broken > 0, float("inf"), best))
    tl.store(index_ptr + s * num_blocks + block, block * XB + at)


@triton.jit
def best_kernel(
    value_ptr, index_ptr, rows_ptr, tokens_ptr, failed_ptr, last_ptr, num_blocks, NP: tl.constexpr
):
    """The first of a row's highest; written for the host and as the row's last token."""
    s = tl.program_id(0)
    n = tl.arange(0, NP)
    value = tl.load(value_ptr + s * num_blocks + n, mask=n < num_blocks, other=float("-inf"))
    best, at = tl.max(value, 0, return_indices=True, return_indices_tie_break_left=True)
    failed = best == float("inf")
    token = tl.where(failed, 0, tl.load(index_ptr + s * num_blocks + at))
    tl.store(tokens_ptr + s, token)
    tl.store(failed_ptr + s, failed.to(tl.int32))
    tl.store(last_ptr + tl.load(rows_ptr + s).to(tl.int64), token.to(tl.int64))
