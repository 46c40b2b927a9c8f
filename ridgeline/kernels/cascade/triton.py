"""The Triton kernel of shared prefixes: many rows' queries against keys and values that they have in common.

Legend: S rows, HKV KV heads, G query heads of each, GP heads of a tile (rows times G, padded), D head width
(DP padded), R rotary width, P tokens a page, C tokens a piece, BT tokens a tile.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ridgeline.kernels.decode_attention.triton import _attend, _operand, _pairs, _turned


@triton.jit
def shared_kernel(qkv_ptr, k_ptr, v_ptr, table_ptr, members_ptr, work_ptr, total_ptr, cos_ptr, sin_ptr,
                  qn_ptr, part_o, part_ml, lock_ptr, stride_qkv, stride_table, stride_angle, stride_page,
                  stride_token, stride_head, scale, eps, first_slot, row_slots, HKV: tl.constexpr,
                  G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
                  P: tl.constexpr, C: tl.constexpr, BT: tl.constexpr, QK_NORM: tl.constexpr,
                  PDL: tl.constexpr, INTERPRET: tl.constexpr):
    """work [items, 4]: (first of members, how many, first token, end), a piece of a prefix each. Leaves every
    row's sums in its slots, row_slots of each row and KV head from first_slot on, where decode_kernel finds
    them, and counts as an arrival there."""
    pid = tl.program_id(0)
    if PDL > 0:
        gdc_wait()
        gdc_launch_dependents()
    r = tl.arange(0, GP)
    d = tl.arange(0, DP)
    g = r % G
    for item in range(pid, tl.load(total_ptr) * HKV, tl.num_programs(0)):
        head = item % HKV
        w = work_ptr + item // HKV * 4
        member, many = tl.load(w), tl.load(w + 1)
        start, stop = tl.load(w + 2), tl.load(w + 3)
        ok = r // G < many
        row = tl.load(members_ptr + member + r // G, mask=ok, other=0).to(tl.int64)
        turned = ok[:, None] & (d < R)[None, :]
        angles = row[:, None] * stride_angle + d[None, :]
        cos = tl.load(cos_ptr + angles, mask=turned, other=1.0)
        sin = tl.load(sin_ptr + angles, mask=turned, other=0.0)
        heads = qkv_ptr + (row * stride_qkv + (head * G + g) * D)[:, None]
        x, y = _pairs(heads, ok[:, None], D, DP, R)
        q = _turned(x, y, qn_ptr, cos, sin, eps, D, DP, R, QK_NORM)
        q = _operand(q, k_ptr, qkv_ptr.dtype.element_ty)
        pages = table_ptr + tl.load(members_ptr + member).to(tl.int64) * stride_table
        m, l, acc = _attend(q, k_ptr + head * stride_head, v_ptr + head * stride_head, pages, start, stop, 0,
                            stride_page, stride_token, scale, GP, D, DP, P, BT, False, INTERPRET)
        slot = row * HKV + head
        at = (first_slot + slot * row_slots + start // C) * G + g
        tl.store(part_o + at[:, None] * DP + d[None, :], acc, mask=ok[:, None])
        tl.store(part_ml + at * 2, m, mask=ok)
        tl.store(part_ml + at * 2 + 1, l, mask=ok)
        tl.debug_barrier()
        tl.atomic_add(lock_ptr + slot, 1, mask=ok & (g == 0), sem="release")
