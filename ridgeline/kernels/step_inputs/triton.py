"""Triton kernels before the layers of a step. All are launched without PDL: a step's full barriers.

Legend: S rows of a step, X places of a row's tables, R rotary width.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def gather_kernel(
    staged_ptr, last_ptr, table_ptr, ids_ptr, positions_ptr, reach_ptr, lens_ptr, out_ptr, num_rows, width,
    stride_table, XB: tl.constexpr,
):  # fmt: skip
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
