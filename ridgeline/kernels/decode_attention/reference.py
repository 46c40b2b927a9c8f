"""Decode attention in plain torch, row by row: the kernel's twin.

Legend: S rows, M query heads, G KV heads, D head width, R rotary width, N arena pages, P tokens a page.
"""

import torch
from torch import Tensor
from torch.nn.functional import rms_norm


def decode_reference(qkv_SE: Tensor, keys_NPGD: Tensor, values_NPGD: Tensor, lens_S: Tensor, table_SX: Tensor,
                     cos_SR: Tensor, sin_SR: Tensor, *, scale: float, window: int | None = None,
                     q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 0.0,
                     sinks_M: Tensor | None = None, k_scale: float = 1.0, v_scale: float = 1.0) -> Tensor:
    """[S, M * D]; writes the new keys and values. Arguments as of `DecodeAttention`. Sums in float32."""
    tokens, groups, dim = keys_NPGD.shape[1:]
    qkv_SND = qkv_SE.unflatten(1, (-1, dim))
    heads = qkv_SND.shape[1] - 2 * groups
    out_SE = qkv_SE.new_empty(len(qkv_SE), heads * dim)
    for row, length in enumerate(lens_S.tolist()):
        if length == 0:
            continue
        angles = cos_SR[row], sin_SR[row]
        q_MD = _turned(qkv_SND[row, :heads], q_norm, *angles, eps).to(qkv_SE.dtype).float()
        place = int(table_SX[row, (length - 1) // tokens]), (length - 1) % tokens
        keys_NPGD[place] = stored(_turned(qkv_SND[row, heads: heads + groups], k_norm, *angles, eps),
                                  k_scale, keys_NPGD.dtype)
        values_NPGD[place] = stored(qkv_SND[row, heads + groups:].float(), v_scale, values_NPGD.dtype)
        low = 0 if window is None else max(0, length - window)
        position = torch.arange(low, length, device=table_SX.device)
        pages, places = table_SX[row, position // tokens].long(), position % tokens
        k_KGD = keys_NPGD[pages, places].float() * k_scale
        v_KGD = values_NPGD[pages, places].float() * v_scale
        scores = torch.einsum("gmd,kgd->gmk", q_MD.unflatten(0, (groups, -1)), k_KGD) * scale
        if sinks_M is not None:
            scores = torch.cat((scores, sinks_M.float().view(groups, -1, 1)), -1)
        weights = scores.softmax(-1)[..., : length - low]
        out_SE[row] = torch.einsum("gmk,kgd->gmd", weights, v_KGD).flatten().to(qkv_SE.dtype)
    return out_SE


def stored(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Entries of the cache, cut to what its type holds."""
    top = torch.finfo(dtype).max
    return (x / scale).clamp(-top, top).to(dtype)


def _turned(x_ND: Tensor, norm_D: Tensor | None, cos_R: Tensor, sin_R: Tensor, eps: float) -> Tensor:
    """Norm, then rotation of the first R of D, in float32."""
    x_ND = x_ND.float()
    if norm_D is not None:
        x_ND = rms_norm(x_ND, x_ND.shape[-1:], norm_D.float(), eps)
    width = len(cos_R)
    part = x_ND[:, :width]
    turned = part * cos_R + part.roll(width // 2, -1) * sin_R
    return torch.cat((turned, x_ND[:, width:]), -1)
