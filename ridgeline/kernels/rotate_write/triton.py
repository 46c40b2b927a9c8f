"""The Triton kernel of a prompt chunk's new keys and values.

Legend: T tokens, M query heads, HKV KV heads, D head width (DP padded), R rotary width, P tokens a page.
"""

import triton
import triton.language as tl

from ridgeline.kernels.decode_attention.triton import _pair, _stored


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def rotate_write_kernel(
    qkv_ptr, k_ptr, v_ptr, slots_ptr, cos_ptr, sin_ptr, qn_ptr, kn_ptr, stride_qkv, stride_angle,
    stride_page, stride_token, stride_head, eps, k_scale, v_scale, top, M: tl.constexpr, HKV: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, P: tl.constexpr, BH: tl.constexpr,
    QK_NORM: tl.constexpr,
):  # fmt: skip
    """Norm and rotation of the query and key heads of a token, in place, and its keys and values to their
    page. BH heads a program."""
    t = tl.program_id(0)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    d = tl.arange(0, DP)
    pair = _pair(DP, R)
    inside = (h < M + 2 * HKV)[:, None] & (d < D)[None, :]
    heads = qkv_ptr + t.to(tl.int64) * stride_qkv + h[:, None] * D
    raw = tl.load(heads + d[None, :], mask=inside, other=0.0)
    x = raw.to(tl.float32)
    y = tl.load(heads + pair[None, :], mask=inside, other=0.0).to(tl.float32)
    if QK_NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        is_q = (h < M)[:, None]
        qn = tl.load(qn_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
        kn = tl.load(kn_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
        qp = tl.load(qn_ptr + pair, mask=d < D, other=0.0).to(tl.float32)[None, :]
        kp = tl.load(kn_ptr + pair, mask=d < D, other=0.0).to(tl.float32)[None, :]
        x = x * scale * tl.where(is_q, qn, kn)
        y = y * scale * tl.where(is_q, qp, kp)
    cos = tl.load(cos_ptr + t * stride_angle + d, mask=d < R, other=1.0)[None, :]
    sin = tl.load(sin_ptr + t * stride_angle + d, mask=d < R, other=0.0)[None, :]
    x = x * cos + y * sin
    turned = x.to(raw.dtype)
    tl.debug_barrier()
    tl.store(heads + d[None, :], turned, mask=inside & (h < M + HKV)[:, None])
    slot = tl.load(slots_ptr + t)
    place = slot // P * stride_page + slot % P * stride_token
    key = place + (h - M)[:, None] * stride_head + d[None, :]
    entry = _stored(x, k_scale, top, k_ptr.dtype.element_ty)
    tl.store(k_ptr + key, entry, mask=inside & ((h >= M) & (h < M + HKV))[:, None])
    value = place + (h - M - HKV)[:, None] * stride_head + d[None, :]
    entry = _stored(raw.to(tl.float32), v_scale, top, v_ptr.dtype.element_ty)
    tl.store(v_ptr + value, entry, mask=inside & (h >= M + HKV)[:, None])
