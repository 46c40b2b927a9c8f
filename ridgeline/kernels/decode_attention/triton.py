"""Triton kernels of decode attention: one new token a row, its keys and values in pages.

Legend: S rows, HKV KV heads, G query heads of each (GP padded), D head width (DP padded), R rotary width, P
tokens a page, BT tokens a tile, C tokens a piece of a shared prefix. The step's tiles stand in one line, row
after row, of each row its KV heads one after another; every program takes as many of them, so that all end
together whatever the rows' lengths. A head that several programs met in is merged by the one that is done
last.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["num_rows", "programs"])
def plan_kernel(lens_ptr, skip_ptr, begin_ptr, share_ptr, num_rows, window, programs,
                HKV: tl.constexpr, BT: tl.constexpr, LEAST: tl.constexpr, FEW: tl.constexpr,
                BR: tl.constexpr, SHARED: tl.constexpr):
    """One program a row, BR >= num_rows. share: all tiles, and how many a program takes: at least LEAST,
    fewer where no row has FEW times as many. begin [programs, 4]: where a program's tiles begin (row, KV
    head, tiles of that head before them, length of the row), written where it has some. Tiles before the
    row's window are left out, those of its skip tokens too when SHARED."""
    row = tl.program_id(0)
    r = tl.arange(0, BR)
    n = tl.load(lens_ptr + r, mask=r < num_rows, other=0)
    skipped = tl.maximum(n - window, 0) // BT
    if SHARED:
        skipped = tl.load(skip_ptr + r, mask=r < num_rows, other=0) // BT
    tiles = (n + BT - 1) // BT - skipped
    total = tl.sum(tiles, 0) * HKV
    least = tl.minimum(LEAST, (tl.max(tiles, 0) + FEW - 1) // FEW)
    each = tl.maximum(tl.maximum((total + programs - 1) // programs, least), 1)
    before = tl.sum(tl.where(r < row, tiles, 0), 0) * HKV
    mine = tl.sum(tl.where(r == row, tiles, 0), 0)
    length = tl.sum(tl.where(r == row, n, 0), 0)
    if row == 0:
        tl.store(share_ptr, total)
        tl.store(share_ptr + 1, each)
    last = (before + mine * HKV + each - 1) // each
    for p0 in range((before + each - 1) // each, last, 64):
        p = p0 + tl.arange(0, 64)
        at = p * each - before
        head = at // tl.maximum(mine, 1)
        tl.store(begin_ptr + p * 4, row, mask=p < last)
        tl.store(begin_ptr + p * 4 + 1, head, mask=p < last)
        tl.store(begin_ptr + p * 4 + 2, at - head * mine, mask=p < last)
        tl.store(begin_ptr + p * 4 + 3, length, mask=p < last)


@triton.jit
def _dot(a, b, INTERPRET: tl.constexpr):
    if INTERPRET:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _dot_add(a, b, acc, INTERPRET: tl.constexpr):
    if INTERPRET:
        return acc + tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def _pairs(heads_ptr, ok, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr):
    """Heads [heads, DP], and for each element the one that it turns with, R / 2 away. heads_ptr, ok
    [heads, 1]."""
    d = tl.arange(0, DP)
    pair = _pair(DP, R)
    ok = ok & (d < D)[None, :]
    x = tl.load(heads_ptr + d[None, :], mask=ok, other=0.0)
    y = tl.load(heads_ptr + pair[None, :], mask=ok, other=0.0)
    return x, y


@triton.jit
def _pair(DP: tl.constexpr, R: tl.constexpr):
    """[DP]: the element that each turns with, itself beyond R."""
    d = tl.arange(0, DP)
    pair = tl.where(d < R // 2, d + R // 2, tl.where(d < R, d - R // 2, d))
    if R % 16 == 0:
        pair = tl.max_contiguous(tl.multiple_of(pair, 8), 8)
    return pair


@triton.jit
def _turned(x, y, norm_ptr, cos, sin, eps, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
            QK_NORM: tl.constexpr):
    """Normed and rotated heads in float32, of `_pairs`. cos, sin [1, DP]: 1 and 0 beyond R, the sines of the
    first half negated."""
    d = tl.arange(0, DP)
    x, y = x.to(tl.float32), y.to(tl.float32)
    if QK_NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        x = x * scale * tl.load(norm_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
        y = y * scale * tl.load(norm_ptr + _pair(DP, R), mask=d < D, other=0.0).to(tl.float32)[None, :]
    return x * cos + y * sin


@triton.jit
def _operand(q, k_ptr, dtype: tl.constexpr):
    """Queries as the tensor cores take them, and keys and values after them. Those of 8 bits become float16,
    which is exact and one instruction for two of them, where 16 bits are asked for."""
    HALF: tl.constexpr = k_ptr.dtype.element_ty.primitive_bitwidth == 8 and dtype.primitive_bitwidth == 16
    if HALF:
        q = tl.clamp(q, -65504.0, 65504.0)
    return q.to(tl.float16 if HALF else dtype)


@triton.jit
def _inputs(new, cos_ptr, sin_ptr, qn_ptr, head, ends, eps, HKV: tl.constexpr, G: tl.constexpr,
            GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, QK_NORM: tl.constexpr):
    """(queries, normed and turned; new key's pairs and value, where ends; cosines, sines) of a row. All loads
    come before the first change of layout, which waits for what is loaded."""
    g = tl.arange(0, GP)
    d = tl.arange(0, DP)
    one = tl.arange(0, 1)[:, None]
    cos = tl.load(cos_ptr + d, mask=d < R, other=1.0)
    sin = tl.load(sin_ptr + d, mask=d < R, other=0.0)
    q_x, q_y = _pairs(new + ((head * G + g) * D)[:, None], (g < G)[:, None], D, DP, R)
    k_x, k_y = _pairs(new + (HKV * G + head) * D + one, ends & (one == 0), D, DP, R)
    value = tl.load(new + (HKV * G + HKV + head) * D + d, mask=ends & (d < D), other=0.0)
    cos, sin = cos[None, :], sin[None, :]
    return _turned(q_x, q_y, qn_ptr, cos, sin, eps, D, DP, R, QK_NORM), k_x, k_y, value, cos, sin


@triton.jit
def _with_sink(m, l, sink):
    """(l, factor of the sum of values) after a key of score `sink` and value 0; m, sink in powers of 2."""
    m_new = tl.maximum(m, sink)
    shrink = tl.exp2(m - m_new)
    return l * shrink + tl.exp2(sink - m_new), shrink


@triton.jit
def _summed(state, part_o, part_ml, first, odd, pieces, g, g_ok, G: tl.constexpr, DP: tl.constexpr,
            NP: tl.constexpr, STEP: tl.constexpr):
    """The state with so many pieces' sums added, NP at a time, of query heads g: those in slot first, or the
    one after it when odd, and in every STEPth from first on."""
    m, l, acc = state
    d = tl.arange(0, DP)
    for p0 in range(0, pieces, NP):
        n = p0 + tl.arange(0, NP)
        ok = (n < pieces)[None, :] & g_ok[:, None]
        at = (first + n * STEP + tl.where(n == 0, odd, 0))[None, :] * G + g[:, None]
        m_p = tl.load(part_ml + at * 2, mask=ok, other=-1e30, cache_modifier=".cg")
        l_p = tl.load(part_ml + at * 2 + 1, mask=ok, other=0.0, cache_modifier=".cg")
        o_p = tl.load(part_o + at[:, :, None] * DP + d[None, None, :], mask=ok[:, :, None], other=0.0,
                      cache_modifier=".cg")
        m_new = tl.maximum(m, tl.max(m_p, 1))
        weight = tl.exp2(m_p - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        # Rounded before it is added: fused, threads that all sum these would differ by a bit.
        l = l * shrink + tl.sum(tl.where(ok, l_p * weight, 0.0), 1)
        acc = acc * shrink[:, None] + tl.sum(o_p * weight[:, :, None], 1)
        m = m_new
    return m, l, acc


@triton.jit
def _merge(out_ptr, part_o, part_ml, sink_ptr, v_scale, first, odd, pieces, common, shared, G: tl.constexpr,
           GN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, NP: tl.constexpr, SINK: tl.constexpr,
           SHARED: tl.constexpr):
    """Every query head of a KV head, GN at once, from the pieces that programs left, the first in slot first
    (or after it when odd), and before those from `shared` slots from common on."""
    d = tl.arange(0, DP)
    for g0 in range(0, G, GN):
        g = g0 + tl.arange(0, GN)
        g_ok = g < G
        state = (tl.full((GN,), -1e30, tl.float32), tl.zeros((GN,), tl.float32),
                 tl.zeros((GN, DP), tl.float32))
        if SHARED:
            state = _summed(state, part_o, part_ml, common, 0, shared, g, g_ok, G, DP, NP, 1)
        m, l, acc = _summed(state, part_o, part_ml, first, odd, pieces, g, g_ok, G, DP, NP, 2)
        if SINK:
            l, shrink = _with_sink(m, l, tl.load(sink_ptr + g, mask=g_ok, other=-1e30).to(tl.float32) * LOG2E)
            acc = acc * shrink[:, None]
        o = acc * v_scale / tl.maximum(l, 1e-30)[:, None]
        tl.store(out_ptr + g[:, None] * D + d[None, :], o.to(out_ptr.dtype.element_ty),
                 mask=g_ok[:, None] & (d < D)[None, :])


@triton.jit
def _settle(state, out_ptr, sink_ptr, part_o, part_ml, lock_ptr, v_scale, at, many, whole, tiles, each,
            common, shared, G: tl.constexpr, GP: tl.constexpr, GN: tl.constexpr, D: tl.constexpr,
            DP: tl.constexpr, NP: tl.constexpr, SINK: tl.constexpr, SHARED: tl.constexpr):
    """What becomes of a program's sums of `many` tiles from at on, where `tiles` of a row and KV head begin
    at whole: the result, where they are all; else they are left, and merged where they are the last to come.
    common, shared: first slot, and how many, of the row's prefix."""
    m, l, acc = state
    g = tl.arange(0, GP)
    d = tl.arange(0, DP)
    if (many == tiles) & (shared == 0):
        if SINK:
            sink = tl.load(sink_ptr + g, mask=g < G, other=-1e30).to(tl.float32) * LOG2E
            l, shrink = _with_sink(m, l, sink)
            acc = acc * shrink[:, None]
        o = (acc * v_scale / tl.maximum(l, 1e-30)[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + g[:, None] * D + d[None, :], o, mask=(g < G)[:, None] & (d < D)[None, :])
    else:
        pid = tl.program_id(0)
        earliest = whole // each
        pieces = (whole + tiles - 1) // each - earliest + 1
        mine = 2 * pid + (at > pid * each).to(tl.int32)
        if SHARED:
            mine = tl.where(many == tiles, common + shared, mine)
            pieces = tl.where(many == tiles, 0, pieces)
            shared += (many == tiles).to(tl.int32)
        slot = mine * G + g
        tl.store(part_o + slot[:, None] * DP + d[None, :], acc, mask=(g < G)[:, None])
        tl.store(part_ml + slot * 2, m, mask=g < G)
        tl.store(part_ml + slot * 2 + 1, l, mask=g < G)
        tl.debug_barrier()
        if tl.atomic_add(lock_ptr, 1, sem="acq_rel") == pieces + shared - 1:
            tl.store(lock_ptr, 0)
            odd = (whole > earliest * each).to(tl.int32)
            _merge(out_ptr, part_o, part_ml, sink_ptr, v_scale, 2 * earliest, odd, pieces, common, shared, G,
                   GN, D, DP, NP, SINK, SHARED)


@triton.jit
def _stored(x, scale, top, dtype: tl.constexpr):
    """Entries of the cache; where they have 8 bits, in units of scale and cut to +-top."""
    if dtype.primitive_bitwidth == 8:
        x = tl.clamp(x / scale, -top, top)
    return x.to(dtype)


@triton.jit
def _write_new(key, value, k_ptr, v_ptr, k_scale, v_scale, top, D: tl.constexpr, DP: tl.constexpr):
    """The row's new key [1, DP], normed and turned, and its value [DP], to where k_ptr and v_ptr point."""
    d = tl.arange(0, DP)
    one = tl.arange(0, 1)[:, None]
    tl.store(k_ptr + one + d[None, :], _stored(key, k_scale, top, k_ptr.dtype.element_ty),
             mask=(d < D)[None, :])
    tl.store(v_ptr + d, _stored(value, v_scale, top, v_ptr.dtype.element_ty), mask=d < D)
    tl.debug_barrier()


@triton.jit
def _attend(q, k_ptr, v_ptr, pages_ptr, begin, stop, low, stride_page, stride_token, scale, GP: tl.constexpr,
            D: tl.constexpr, DP: tl.constexpr, P: tl.constexpr, BT: tl.constexpr, WINDOW: tl.constexpr,
            INTERPRET: tl.constexpr):
    """Online softmax of q [GP, DP] over tokens from begin, a multiple of BT, to stop, none before low:
    (maximum in powers of 2, sum, sum of values)."""
    d = tl.arange(0, DP)
    bt = tl.arange(0, BT)
    m = tl.full((GP,), -1e30, tl.float32)
    l = tl.zeros((GP,), tl.float32)
    acc = tl.zeros((GP, DP), tl.float32)
    page = tl.load(pages_ptr + begin // P)  # a tile ahead, where it can: else keys would wait for it
    for t0 in range(begin, stop, BT):
        t = t0 + bt
        t_ok = t < stop
        if WINDOW:
            t_ok = t_ok & (t >= low)
        if P % BT == 0:
            base = page.to(tl.int64) * stride_page + (t0 % P + bt) * stride_token
            page = tl.load(pages_ptr + (t0 + BT) // P, mask=t0 + BT < stop, other=0)
        else:
            pages = tl.load(pages_ptr + t // P, mask=t_ok, other=0).to(tl.int64)
            base = pages * stride_page + (t % P) * stride_token
        k = tl.load(k_ptr + base[None, :] + d[:, None], mask=t_ok[None, :] & (d < D)[:, None], other=0.0)
        v = tl.load(v_ptr + base[:, None] + d[None, :], mask=t_ok[:, None] & (d < D)[None, :], other=0.0)
        s = _dot(q, k.to(q.dtype), INTERPRET)
        s = tl.where(t_ok[None, :], s * (scale * LOG2E), float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        acc = _dot_add(p.to(q.dtype), v.to(q.dtype), acc * shrink[:, None], INTERPRET)
        m = m_new
    return m, l, acc


@triton.jit(do_not_specialize=["num_rows"])
def decode_kernel(qkv_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, skip_ptr, begin_ptr, share_ptr, cos_ptr,
                  sin_ptr, qn_ptr, kn_ptr, sink_ptr, part_o, part_ml, lock_ptr, out_ptr, num_rows, stride_qkv,
                  stride_out, stride_table, stride_angle, stride_page, stride_token, stride_head, scale,
                  k_scale, v_scale, top, window, eps, prefix_slots,
                  HKV: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
                  R: tl.constexpr, P: tl.constexpr, BT: tl.constexpr, C: tl.constexpr, NP: tl.constexpr,
                  GN: tl.constexpr, QK_NORM: tl.constexpr, SINK: tl.constexpr, WINDOW: tl.constexpr,
                  SHARED: tl.constexpr, PDL: tl.constexpr, INTERPRET: tl.constexpr):
    """qk-norm, rotation, the write of the new key and value, and attention over all keys.

    The program with the row's last tile writes the new token and then reads it back, so nobody waits for it.
    Keys and values share strides. A program's sums go to slot 2 pid for its first tiles, 2 pid + 1 for its
    last. With SHARED every row and KV head has prefix_slots more behind those: the pieces of its prefix, and
    one for its own sums where they are whole. The plan and lens are read before gdc_wait: a kernel launched
    without PDL must lie between them and the kernel before this one, or be that kernel.
    """
    pid = tl.program_id(0)
    if PDL == 2:
        gdc_launch_dependents()
    row = tl.load(begin_ptr + pid * 4).to(tl.int64)
    head = tl.load(begin_ptr + pid * 4 + 1)
    behind = tl.load(begin_ptr + pid * 4 + 2)
    length = tl.load(begin_ptr + pid * 4 + 3)
    each = tl.load(share_ptr + 1)
    at = pid * each
    end = tl.minimum(at + each, tl.load(share_ptr))
    if PDL > 0:
        gdc_wait()
    while at < end:
        low, skipped, shared = 0, 0, 0
        if WINDOW:
            low = tl.maximum(length - window, 0)
            skipped = low // BT
        if SHARED:
            shared = tl.load(skip_ptr + row) // C
            skipped = shared * (C // BT)
        tiles = (length + BT - 1) // BT - skipped
        many = tl.minimum(tiles - behind, end - at)
        start = (skipped + behind) * BT
        stop = tl.minimum(start + many * BT, length)
        ends = stop == length
        pages = table_ptr + row * stride_table
        first_page = tl.load(pages + start // P)
        last_page = tl.load(pages + (length - 1) // P).to(tl.int64)
        next_length = tl.load(lens_ptr + row + 1, mask=row + 1 < num_rows, other=0)
        angles = row * stride_angle
        q, k_x, k_y, value, cos, sin = _inputs(qkv_ptr + row * stride_qkv, cos_ptr + angles, sin_ptr + angles,
                                               qn_ptr, head, ends, eps, HKV, G, GP, D, DP, R, QK_NORM)
        q = _operand(q, k_ptr, out_ptr.dtype.element_ty)
        keys = k_ptr + head * stride_head
        values = v_ptr + head * stride_head
        if ends:
            to = last_page * stride_page + ((length - 1) % P) * stride_token
            key = _turned(k_x, k_y, kn_ptr, cos, sin, eps, D, DP, R, QK_NORM)
            _write_new(key, value.to(tl.float32), keys + to, values + to, k_scale, v_scale, top, D, DP)
        begin = start + BT * tl.minimum(first_page, 0)  # plus 0: so that the load stays, and brings the line
        m, l, acc = _attend(q, keys, values, pages, begin, stop, low, stride_page, stride_token,
                            scale * k_scale, GP, D, DP, P, BT, WINDOW, INTERPRET)
        common = 0
        if SHARED:
            common = (2 * tl.num_programs(0) + (row * HKV + head) * prefix_slots).to(tl.int32)
        _settle((m, l, acc), out_ptr + row * stride_out + head * G * D, sink_ptr + head * G, part_o, part_ml,
                lock_ptr + row * HKV + head, v_scale, at, many, at - behind, tiles, each, common, shared, G,
                GP, GN, D, DP, NP, SINK, SHARED)
        at += many
        behind = 0
        head += 1
        if head == HKV:
            head = 0
            row += 1
            length = next_length
            while (length == 0) & (at < end):
                row += 1
                length = tl.load(lens_ptr + row)
    if PDL == 1:
        gdc_launch_dependents()
