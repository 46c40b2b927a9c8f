"""`rotate_write` in plain torch: the kernel's twin. Legend: as of the door."""

from torch import Tensor
from torch.nn.functional import rms_norm

from ridgeline.kernels.decode_attention.reference import stored


def rotate_write_reference(
    qkv_TE: Tensor, keys_NPGD: Tensor, values_NPGD: Tensor, slots_T: Tensor, cos_TR: Tensor, sin_TR: Tensor,
    *, num_heads: int, q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 0.0,
    k_scale: float = 1.0, v_scale: float = 1.0,
) -> None:  # fmt: skip
    tokens, kv_heads, dim = keys_NPGD.shape[1:]
    qkv_TND, width = qkv_TE.unflatten(1, (-1, dim)), cos_TR.shape[1]
    for heads, norm_D in ((slice(0, num_heads), q_norm), (slice(num_heads, num_heads + kv_heads), k_norm)):
        x = qkv_TND[:, heads].float()
        if norm_D is not None:
            x = rms_norm(x, (dim,), norm_D.float(), eps)
        part = x[..., :width]
        x[..., :width] = part * cos_TR[:, None] + part.roll(width // 2, -1) * sin_TR[:, None]
        qkv_TND[:, heads] = x.to(qkv_TE.dtype)
    place = slots_T // tokens, slots_T % tokens
    keys_NPGD[place] = stored(x, k_scale, keys_NPGD.dtype)
    values_NPGD[place] = stored(qkv_TND[:, num_heads + kv_heads :].float(), v_scale, values_NPGD.dtype)
