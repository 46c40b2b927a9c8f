"""The Triton kernel of prompts' chunks: attention of many new tokens a row over pages.

Legend: T tokens of the step, S rows, HKV KV heads, G query heads of each, D head width (DP padded), P tokens
a page, BM query heads of a tile (BM // G tokens with all heads of a group), BT keys of a tile.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _dot(a, b, acc, INTERPRET: tl.constexpr):
    if INTERPRET:
        return acc + tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def _attend(state, q, k_ptr, v_ptr, pages_ptr, head, begin, low, stop, position, stride_page, stride_token,
            scale, window, BM: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, P: tl.constexpr,
            BT: tl.constexpr, MASKED: tl.constexpr, WINDOW: tl.constexpr, WHOLE: tl.constexpr,
            INTERPRET: tl.constexpr):
    """Online softmax over tokens from begin, a multiple of BT, to stop: (maximum in powers of 2, sum, sum of
    values). MASKED: a token sees those up to its position, nobody those before low; else all see all, and
    stop is a multiple too. WHOLE: k_ptr and v_ptr are descriptors, from which a head's page comes at once."""
    m, l, acc = state
    bt = tl.arange(0, BT)
    d = tl.arange(0, DP)
    for t0 in range(begin, stop, BT):
        t = t0 + bt
        t_ok = (t >= low) & (t < stop)
        if WHOLE:
            page = tl.load(pages_ptr + t0 // BT)
        elif P % BT == 0:
            at = tl.load(pages_ptr + t0 // P).to(tl.int64) * stride_page + (t0 % P + bt) * stride_token
        else:
            at = tl.load(pages_ptr + t // P, mask=t_ok, other=0).to(tl.int64) * stride_page
            at += t % P * stride_token
        if WHOLE:
            k = k_ptr.load([page, head, 0, 0]).reshape(BT, D).T
        elif MASKED:
            k = tl.load(k_ptr + at[None, :] + d[:, None], mask=t_ok[None, :] & (d < D)[:, None], other=0.0)
        else:
            k = tl.load(k_ptr + at[None, :] + d[:, None], mask=(d < D)[:, None], other=0.0)
        s = _dot(q, k.to(q.dtype), tl.zeros((BM, BT), tl.float32), INTERPRET)
        if MASKED:
            seen = t[None, :] <= position[:, None]
            if WINDOW:
                seen = seen & (t[None, :] > position[:, None] - window)
            s = tl.where(seen, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        if WHOLE:
            v = v_ptr.load([page, head, 0, 0]).reshape(BT, D)
            if MASKED:
                v = tl.where(t_ok[:, None], v, 0.0)
        elif MASKED:
            v = tl.load(v_ptr + at[:, None] + d[None, :], mask=t_ok[:, None] & (d < D)[None, :], other=0.0)
        else:
            v = tl.load(v_ptr + at[:, None] + d[None, :], mask=(d < D)[None, :], other=0.0)
        acc = _dot(p.to(q.dtype), v.to(q.dtype), acc * shrink[:, None], INTERPRET)
        m = m_new
    return m, l, acc


@triton.jit(do_not_specialize_on_alignment=["table_ptr", "chunks_ptr", "work_ptr"])
def prefill_kernel(q_ptr, k_ptr, v_ptr, table_ptr, chunks_ptr, work_ptr, sink_ptr, out_ptr, stride_q,
                   stride_table, stride_page, stride_token, stride_head, scale, v_scale, window,
                   HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, P: tl.constexpr,
                   BM: tl.constexpr, BT: tl.constexpr, SINK: tl.constexpr, WINDOW: tl.constexpr,
                   WHOLE: tl.constexpr, INTERPRET: tl.constexpr):
    """Programs (KV head, item). chunks [S, 3]: (first token in q, its position, tokens); work [items, 2]:
    (row, token of the chunk that the item starts at). q: rows of HKV * G heads of D; out [T, HKV * G * D].
    scale: of scores in powers of 2. WHOLE: see `_attend`; BT is then P, and D is DP."""
    head, item = tl.program_id(0), tl.program_id(1)
    TOKENS: tl.constexpr = BM // G
    row = tl.load(work_ptr + item * 2)
    skipped = tl.load(work_ptr + item * 2 + 1)
    first = tl.load(chunks_ptr + row * 3)
    start = tl.load(chunks_ptr + row * 3 + 1)
    count = tl.load(chunks_ptr + row * 3 + 2)
    r = tl.arange(0, BM)
    d = tl.arange(0, DP)
    token = skipped + r // G
    ok = ((token < count) & (r < TOKENS * G))[:, None] & (d < D)[None, :]
    place = (first + token).to(tl.int64)
    query = head * G + r % G
    q = tl.load(q_ptr + (place * stride_q + query * D)[:, None] + d[None, :], mask=ok, other=0.0)
    if WHOLE:
        keys, values = k_ptr, v_ptr
    else:
        keys, values = k_ptr + head * stride_head, v_ptr + head * stride_head
    pages = table_ptr + row.to(tl.int64) * stride_table
    position, earliest = start + token, start + skipped
    stop = start + tl.minimum(skipped + TOKENS, count)
    state = (tl.full((BM,), -1e30, tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM, DP), tl.float32))
    low, begin = 0, 0
    if WINDOW:
        low = tl.maximum(earliest - window + 1, 0)
        begin = low // BT * BT
    else:
        begin = (earliest + 1) // BT * BT  # all that come before are seen by all
        state = _attend(state, q, keys, values, pages, head, 0, 0, begin, position, stride_page, stride_token,
                        scale, window, BM, D, DP, P, BT, False, False, WHOLE, INTERPRET)
    m, l, acc = _attend(state, q, keys, values, pages, head, begin, low, stop, position, stride_page,
                        stride_token, scale, window, BM, D, DP, P, BT, True, WINDOW, WHOLE, INTERPRET)
    if SINK:
        l += tl.exp2(tl.load(sink_ptr + query).to(tl.float32) * LOG2E - m)
    out = acc * (v_scale / tl.maximum(l, 1e-30))[:, None]
    to = out_ptr + (place * (HKV * G * D) + query * D)[:, None] + d[None, :]
    tl.store(to, out.to(out_ptr.dtype.element_ty), mask=ok)
