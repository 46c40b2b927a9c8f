"""A prompt's chunks in plain torch, row by row: the kernel's twin.

Legend: T tokens, S rows, M query heads, G KV heads, D head width, N arena pages, P tokens a page, X pages a
row, K keys.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def prefill_reference(q_TMD: Tensor, keys_NPGD: Tensor, values_NPGD: Tensor, table_SX: Tensor,
                      chunks: Iterable[tuple[int, int, int]], *, scale: float, window: int | None = None,
                      sinks_M: Tensor | None = None, k_scale: float = 1.0, v_scale: float = 1.0) -> Tensor:
    """[T, M, D] float32. chunks: of each row (first token in q, its position, tokens)."""
    tokens, groups = keys_NPGD.shape[1:3]
    out_TMD = q_TMD.new_full(q_TMD.shape, torch.nan, dtype=torch.float32)
    for row, (first, start, count) in enumerate(chunks):
        low = 0 if window is None else max(0, start - window + 1)
        at_K = torch.arange(low, start + count, device=q_TMD.device)
        pages = table_SX[row, at_K // tokens].long(), at_K % tokens
        k_KGD, v_KGD = keys_NPGD[pages].float() * k_scale, values_NPGD[pages].float() * v_scale
        q_TGMD = q_TMD[first: first + count].float().unflatten(1, (groups, -1))
        scores = torch.einsum("tgmd,kgd->gmtk", q_TGMD, k_KGD) * scale
        at_T1 = torch.arange(start, start + count, device=q_TMD.device)[:, None]
        unseen = (at_K > at_T1) | (at_K <= at_T1 - (window or start + count + 1))
        scores = scores.masked_fill(unseen, -torch.inf)
        if sinks_M is not None:
            sink = sinks_M.float().view(groups, -1, 1, 1).expand(-1, -1, count, 1)
            scores = torch.cat((scores, sink), -1)
        weights = scores.softmax(-1)[..., : len(at_K)]
        out_TMD[first: first + count] = torch.einsum("gmtk,kgd->tgmd", weights, v_KGD).flatten(1, 2)
    return out_TMD

