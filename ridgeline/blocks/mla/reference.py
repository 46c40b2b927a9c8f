"""Latent attention over pages in plain torch: decodes absorb the up-projection, prompt chunks expand it.

Owns how an entry is laid out: C latent elements, already normed, then the R elements of the rotated key. The
two ways are the same function: q.(U c) = (U^T q).c, and sum p (V c) = V (sum p c). Absorbed, all heads read
the entries as they are, as one key whose first C elements are the value; expanded, a pair costs fewer
products.

Legend: T tokens, S rows, M heads, C latent width, R rotary width, E = C + R, N key width without position,
D = N + R, V value width, U = N + V, K keys, G some of the heads.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from ridgeline.blocks.mla.spec import HELD
from ridgeline.blocks.paged import AttentionPlan, Chunk, DecodeBatch, chunk_keys, decode_keys, query_blocks


def latent_attention(q_TMD: Tensor, new_TE: Tensor | None, entries: Tensor, plan: AttentionPlan,
                     up_MUC: Tensor, *, scale: float) -> Tensor:
    """Write the new entries, then attend; returns [T, M, V] in the dtype of q.

    up_MUC: each head's N rows of keys, then V of values. new_TE has the dtype of entries [N, P, E], None
    where another layer has written them and the plan has them as written. The plan's decodes are the first
    tokens. Entries that a row does not see may hold anything.
    """
    if new_TE is not None:
        plan.write(entries, new_TE)
    nope = q_TMD.shape[2] + up_MUC.shape[2] - entries.shape[2]
    out_TMV = q_TMD.new_empty(*q_TMD.shape[:2], up_MUC.shape[1] - nope)
    for batch in plan.decodes:
        q_SME = absorb(q_TMD[batch.rows], up_MUC[:, :nope])
        mixed_SMC = _absorbed(q_SME, entries, batch, plan.scratch, scale, up_MUC.shape[2])
        values_MSV = torch.bmm(mixed_SMC.transpose(0, 1), up_MUC[:, nope:].transpose(1, 2))
        out_TMV[batch.rows] = values_MSV.transpose(0, 1)
    for chunk in plan.chunks:
        part = chunk.tokens
        seen_KE = chunk_keys(entries, chunk, plan.scratch, new_TE).to(q_TMD.dtype)
        out_TMV[part] = expanded(q_TMD[part], seen_KE, chunk, up_MUC, nope, scale)
    return out_TMV


def absorb(q_SMD: Tensor, key_up_MNC: Tensor) -> Tensor:
    """[S, M, E]: queries that meet the entries themselves."""
    nope = key_up_MNC.shape[1]
    latent_MSC = torch.bmm(q_SMD[..., :nope].transpose(0, 1), key_up_MNC)
    return torch.cat((latent_MSC.transpose(0, 1), q_SMD[..., nope:]), -1)


def _absorbed(q_SME: Tensor, entries: Tensor, batch: DecodeBatch, scratch: Tensor, scale: float,
              latent: int) -> Tensor:
    """[S, M, C]: the mean latent that each head sees."""
    kept_SKE = decode_keys(entries, batch, scratch, q_SME.dtype)
    scores_SMK = torch.bmm(q_SME * scale, kept_SKE.transpose(1, 2)).float()
    if batch.mask is not None:
        scores_SMK += batch.mask[:, 0]
    return torch.bmm(scores_SMK.softmax(-1).to(q_SME.dtype), kept_SKE[..., :latent])


def expanded(q_TMD: Tensor, seen_KE: Tensor, chunk: Chunk, up_MUC: Tensor, nope: int, scale: float, *,
             held: int = HELD) -> Tensor:
    """[T, M, V] of one row's chunk: its keys and values are made of the latents, some heads at a time, so
    that about `held` numbers of either are there at once."""
    heads, rows, latent = up_MUC.shape
    out_TMV = q_TMD.new_empty(*q_TMD.shape[:2], rows - nope)
    most = max(1, held // (rows * len(seen_KE)))
    for begin in range(0, heads, most):
        some = slice(begin, begin + most)
        kv_KGU = linear(seen_KE[:, :latent], up_MUC[some].flatten(0, 1)).unflatten(1, (-1, rows))
        rotary_KGR = seen_KE[:, None, latent:].expand(-1, kv_KGU.shape[1], -1)
        k_GKD = torch.cat((kv_KGU[..., :nope], rotary_KGR), -1).transpose(0, 1)
        v_GKV, q_GTD = kv_KGU[..., nope:].transpose(0, 1), q_TMD[:, some].transpose(0, 1)
        for queries, keys, seen in query_blocks(chunk, len(q_TMD), None, q_TMD.device):
            out = scaled_dot_product_attention(q_GTD[None, :, queries], k_GKD[None, :, keys],
                                               v_GKV[None, :, keys], attn_mask=seen, scale=scale)
            out_TMV[queries, some] = out[0].transpose(0, 1)
    return out_TMV
