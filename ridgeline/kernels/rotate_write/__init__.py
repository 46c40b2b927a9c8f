"""The new queries, keys and values of prompt chunks: normed, turned, and written to their pages in one pass.

The door. Legend: T tokens, M query heads, G KV heads, D head width, R rotary width, N arena pages, P tokens a
page.
"""

import torch
from torch import Tensor

_HEADS = 8  # of a program


def rotate_write(
    qkv_TE: Tensor, keys_NPGD: Tensor, values_NPGD: Tensor, slots_T: Tensor, cos_TR: Tensor, sin_TR: Tensor,
    *, num_heads: int, q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 0.0,
    k_scale: float = 1.0, v_scale: float = 1.0,
) -> None:  # fmt: skip
    """In place: the M query and G key heads of each token are normed and turned where they lie; keys and
    values (G heads after them) go to slot page * P + place. slots_T int64. cos, sin as of
    `step_inputs.angles`; rows of qkv and of the angles have stride 1, keys and values equal strides.
    k_scale, v_scale: what 1.0 in the cache stands for; for float8."""
    from ridgeline.kernels.rotate_write.triton import rotate_write_kernel

    tokens, kv_heads, dim = keys_NPGD.shape[1:]
    heads = num_heads + 2 * kv_heads
    assert qkv_TE.shape[1] == heads * dim and qkv_TE.stride(1) == 1
    assert keys_NPGD.stride() == values_NPGD.stride() and keys_NPGD.stride(3) == 1
    assert (q_norm is None) == (k_norm is None)
    rotate_write_kernel[(len(qkv_TE), -(-heads // _HEADS))](
        qkv_TE, keys_NPGD, values_NPGD, slots_T, cos_TR, sin_TR, qkv_TE if q_norm is None else q_norm,
        qkv_TE if k_norm is None else k_norm, qkv_TE.stride(0), cos_TR.stride(0), *keys_NPGD.stride()[:3],
        eps, k_scale, v_scale, torch.finfo(keys_NPGD.dtype).max, num_heads, kv_heads, dim,
        1 << (dim - 1).bit_length(), cos_TR.shape[1], tokens, _HEADS, q_norm is not None,
    )  # fmt: skip
