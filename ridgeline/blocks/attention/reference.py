"""Paged attention in plain torch: the slow twin of every kernel behind this door, and the path that CPUs run.

Owns how a page is laid out: [tokens_per_page, 2 (key, value), G, D], so that a token's entry is one piece
of memory. The query heads that share a KV head are folded into the query length of a decode.

Legend: T tokens, S rows, M query heads, G KV heads, D head width, N arena pages, K keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ridgeline.blocks.paged import AttentionPlan, Chunk, DecodeBatch, chunk_keys, decode_keys, query_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What becomes of q.k before and in the softmax; see AttentionSpec. sinks_M float32."""

    scale: float
    softcap: float | None = None
    sinks_M: Tensor | None = None

    @property
    def plain(self) -> bool:
        """True when torch's own kernels do it."""
        return self.softcap is None and self.sinks_M is None


def paged_attention(q_TMD: Tensor, kv_T2GD: Tensor | None, entries: Tensor, plan: AttentionPlan, *,
                    scoring: Scoring, window: int | None) -> Tensor:
    """Write the new keys and values, then attend; returns [T, M, D] in the dtype of q.

    kv has the dtype of entries, and is None where another layer wrote it already (a plan with written);
    attention runs in that of q. The keys that a row does not see may hold anything, NaN included.
    """
    if kv_T2GD is not None:
        plan.write(entries, kv_T2GD)
    out_TMD = torch.empty_like(q_TMD, memory_format=torch.contiguous_format)
    for batch in plan.decodes:
        out_TMD[batch.rows] = _decode(q_TMD[batch.rows], entries, batch, plan.scratch, scoring)
    for chunk in plan.chunks:
        part = chunk.tokens
        kv_K2GD = chunk_keys(entries, chunk, plan.scratch, kv_T2GD)
        out_TMD[part] = _prefill(q_TMD[part], kv_K2GD, chunk, scoring, window)
    return out_TMD


def _decode(q_SMD: Tensor, entries: Tensor, batch: DecodeBatch, scratch: Tensor,
            scoring: Scoring) -> Tensor:
    groups, width = entries.shape[3:]
    kv_SKE = decode_keys(entries, batch, scratch, q_SMD.dtype)
    k_SKGD, v_SKGD = kv_SKE.unflatten(2, (2, groups, width)).unbind(2)
    mask = None if batch.mask is None else batch.mask.to(q_SMD.dtype)
    q, k, v = q_SMD.unflatten(1, (groups, -1)), k_SKGD.transpose(1, 2), v_SKGD.transpose(1, 2)
    if scoring.plain:
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scoring.scale)
    else:  # the heads of a group as such, one query each
        mask = None if mask is None else mask[:, :, None]
        out = _scored(q[..., None, :], k[:, :, None], v[:, :, None], mask, scoring)
    return out.reshape(q_SMD.shape)


def _prefill(q_TMD: Tensor, kv_K2GD: Tensor, chunk: Chunk, scoring: Scoring, window: int | None) -> Tensor:
    """One row's chunk. A long one with a mask goes in blocks of queries."""
    q_MTD = q_TMD.transpose(0, 1)
    k_GKD, v_GKD = kv_K2GD.to(q_TMD.dtype).permute(1, 2, 0, 3)
    count = len(q_TMD)
    if scoring.plain and chunk.start == chunk.first_key and (window is None or count <= window):
        return _sdpa(q_MTD, k_GKD, v_GKD, None, scoring.scale)
    out_TMD = torch.empty_like(q_TMD, memory_format=torch.contiguous_format)
    for queries, keys, seen in query_blocks(chunk, count, window, q_TMD.device):
        q, k, v = q_MTD[:, queries], k_GKD[:, keys], v_GKD[:, keys]
        if scoring.plain:
            out_TMD[queries] = _sdpa(q, k, v, seen, scoring.scale)
        else:
            mask = torch.zeros(seen.shape, device=q.device).masked_fill_(~seen, -torch.inf)
            grouped = _scored(q.unflatten(0, (len(k), -1)), k[:, None], v[:, None], mask, scoring)
            out_TMD[queries] = grouped.flatten(0, 1).transpose(0, 1)
    return out_TMD


def _scored(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scoring: Scoring) -> Tensor:
    """softmax([scores, sink]) without its last column, times v; q [..., G, heads of a group, T, D], mask
    additive, all in float32."""
    scores = (q.float() @ k.float().transpose(-1, -2)).mul_(scoring.scale)
    if scoring.softcap is not None:
        scores = scores.div_(scoring.softcap).tanh_().mul_(scoring.softcap)
    if mask is not None:
        scores += mask
    if scoring.sinks_M is not None:
        sinks = scoring.sinks_M.view(*q.shape[-4:-2], 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sinks), -1)
    weights = scores.softmax(-1)[..., : k.shape[-2]]
    return (weights @ v.float()).to(q.dtype)


def _sdpa(q_MTD: Tensor, k_GKD: Tensor, v_GKD: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    """[T, M, D]; without a mask, causal from the first key on."""
    out = scaled_dot_product_attention(q_MTD[None], k_GKD[None], v_GKD[None], attn_mask=seen,
                                       is_causal=seen is None, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)
