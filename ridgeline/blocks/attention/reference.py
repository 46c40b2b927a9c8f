"""Paged attention in plain torch: the slow twin of every kernel behind this door, and the path that CPUs run.

Owns how a page is laid out: [tokens_per_page, 2 (key, value), G, D], so that a token's entry is one piece
of memory. Decode rows are gathered by block table into batches of similar length, with the query heads that
share a KV head folded into the query length; each prompt chunk attends to its own cached prefix and itself.

Legend: T tokens, S rows, M query heads, G KV heads, D head width, N arena pages, P pages of a row, K keys.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ridgeline.blocks.step import GroupStep, Step

GATHER_BYTES = 1 << 20  # a batch's keys and values should stay in a core's cache between gather and use
CUT_BYTES = 256 << 10  # padding that costs more than one more batch of decodes
QUERY_BLOCK = 256  # queries whose mask is held at once


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBatch:
    """Decode rows that attend together, padded to K keys.

    rows: of the step. pages [S * P]. mask: additive [S, 1, 1, K], None when every key is visible to its row.
    hidden: (columns, bool [S, columns, 1]) where some row sees less: their keys and values may be NaN.
    """

    rows: slice | Tensor
    pages: Tensor
    num_rows: int
    mask: Tensor | None
    hidden: tuple[tuple[slice, Tensor], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One row's prompt chunk.

    tokens: of the step. start: position of the first. first_key: position of the first key that any of them
    sees. pages hold the positions from first_key - skip on; empty when the chunk sees nothing but itself.
    """

    tokens: slice
    start: int
    first_key: int
    pages: Tensor
    skip: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """What all layers of one cache group share in a step. scratch: room for the largest gather."""

    pages_T: Tensor
    offsets_T: Tensor
    decodes: tuple[DecodeBatch, ...]
    chunks: tuple[Chunk, ...]
    scratch: Tensor


def plan_attention(step: Step, group: GroupStep, entries: Tensor, window: int | None) -> AttentionPlan:
    """Choose batches and masks. entries [N, tokens_per_page, 2, G, D]; only its shape and dtype are read."""
    tokens, ends = entries.shape[1], step.starts + step.counts
    first_keys = np.zeros_like(ends) if window is None else np.maximum(step.starts - window + 1, 0)
    first_pages, last_pages = first_keys // tokens, -(-ends // tokens)
    page_bytes = entries[0].numel() * entries.element_size()
    decodes = tuple(
        _decode_batch(rows, group, first_keys, ends, tokens)
        for rows in _similar((last_pages - first_pages)[: step.num_decodes], page_bytes))
    chunks, token = [], step.num_decodes
    for row in range(step.num_decodes, len(ends)):
        start, first, count = int(step.starts[row]), int(first_keys[row]), int(step.counts[row])
        pages = group.table_SP[row, first_pages[row]: last_pages[row] if first < start else first_pages[row]]
        chunks.append(Chunk(tokens=slice(token, token + count), start=start, first_key=first, pages=pages,
                            skip=first % tokens))
        token += count
    most = max((*(len(d.pages) for d in decodes), *(len(c.pages) for c in chunks)), default=0)
    return AttentionPlan(pages_T=group.slots_T // tokens, offsets_T=group.slots_T % tokens, decodes=decodes,
                         chunks=tuple(chunks), scratch=entries.new_empty(most, entries[0].numel()))


def paged_attention(q_TMD: Tensor, kv_T2GD: Tensor, entries: Tensor, plan: AttentionPlan, *, scoring: Scoring,
                    window: int | None) -> Tensor:
    """Write the new keys and values, then attend; returns [T, M, D] in the dtype of q.

    kv has the dtype of entries; attention runs in that of q. The keys that a row does not see may hold
    anything, NaN included.
    """
    entries.index_put_((plan.pages_T, plan.offsets_T), kv_T2GD)
    out_TMD = torch.empty_like(q_TMD, memory_format=torch.contiguous_format)
    for batch in plan.decodes:
        out_TMD[batch.rows] = _decode(q_TMD[batch.rows], entries, batch, plan.scratch, scoring)
    for chunk in plan.chunks:
        part = chunk.tokens
        out_TMD[part] = _prefill(q_TMD[part], kv_T2GD[part], entries, chunk, plan.scratch, scoring, window)
    return out_TMD


def _gather(entries: Tensor, pages: Tensor, scratch: Tensor) -> Tensor:
    """The pages' entries as [len(pages), tokens * 2 * G * D], in scratch."""
    return torch.index_select(entries.flatten(1), 0, pages, out=scratch[: len(pages)])


def _decode(q_SMD: Tensor, entries: Tensor, batch: DecodeBatch, scratch: Tensor,
            scoring: Scoring) -> Tensor:
    num_rows, (groups, width) = batch.num_rows, entries.shape[3:]
    kv_SKE = _gather(entries, batch.pages, scratch).view(num_rows, -1, 2 * groups * width).to(q_SMD.dtype)
    for columns, unseen in batch.hidden:
        kv_SKE[:, columns].masked_fill_(unseen, 0.0)
    k_SKGD, v_SKGD = kv_SKE.unflatten(2, (2, groups, width)).unbind(2)
    mask = None if batch.mask is None else batch.mask.to(q_SMD.dtype)
    q, k, v = q_SMD.unflatten(1, (groups, -1)), k_SKGD.transpose(1, 2), v_SKGD.transpose(1, 2)
    if scoring.plain:
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scoring.scale)
    else:  # the heads of a group as such, one query each
        mask = None if mask is None else mask[:, :, None]
        out = _scored(q[..., None, :], k[:, :, None], v[:, :, None], mask, scoring)
    return out.reshape(q_SMD.shape)


def _prefill(q_TMD: Tensor, kv_T2GD: Tensor, entries: Tensor, chunk: Chunk, scratch: Tensor, scoring: Scoring,
             window: int | None) -> Tensor:
    """One row's chunk. A long one with a mask goes in blocks of queries, so that no mask is large."""
    if len(chunk.pages):
        kv_T2GD = _gather(entries, chunk.pages, scratch).view(-1, *entries.shape[2:])
        kv_T2GD = kv_T2GD[chunk.skip: chunk.skip + chunk.start - chunk.first_key + len(q_TMD)]
    kv_T2GD = kv_T2GD.to(q_TMD.dtype)
    q_MTD = q_TMD.transpose(0, 1)
    k_GKD, v_GKD = kv_T2GD.permute(1, 2, 0, 3)
    count = len(q_TMD)
    if scoring.plain and chunk.start == chunk.first_key and (window is None or count <= window):
        return _sdpa(q_MTD, k_GKD, v_GKD, None, scoring.scale)
    out_TMD = torch.empty_like(q_TMD, memory_format=torch.contiguous_format)
    for begin in range(0, count, QUERY_BLOCK):
        end = min(begin + QUERY_BLOCK, count)
        query = chunk.start + begin
        low = chunk.first_key if window is None else max(chunk.first_key, query - window + 1)
        keys = slice(low - chunk.first_key, chunk.start + end - chunk.first_key)
        seen = torch.ones(end - begin, chunk.start + end - low, dtype=torch.bool, device=q_TMD.device)
        seen = seen.tril_(query - low)
        if window is not None:
            seen = seen.triu_(query - low - window + 1)
        q, k, v = q_MTD[:, begin:end], k_GKD[:, keys], v_GKD[:, keys]
        if scoring.plain:
            out_TMD[begin:end] = _sdpa(q, k, v, seen, scoring.scale)
        else:
            mask = torch.zeros(seen.shape, device=q.device).masked_fill_(~seen, -torch.inf)
            grouped = _scored(q.unflatten(0, (len(k), -1)), k[:, None], v[:, None], mask, scoring)
            out_TMD[begin:end] = grouped.flatten(0, 1).transpose(0, 1)
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


def _similar(num_pages: NDArray[np.int64], page_bytes: int) -> list[NDArray[np.int64]]:
    """Rows by batch, from the longest: cut where that saves padding worth a batch, or the batch is full."""
    order = np.argsort(-num_pages, kind="stable")
    batches, begin = [], 0
    for place, size in enumerate(num_pages[order].tolist()):
        longest = int(num_pages[order[begin]])
        padding = (longest - size) * (len(order) - place) * page_bytes
        full = (place - begin + 1) * longest * page_bytes > GATHER_BYTES
        if place > begin and (padding > CUT_BYTES or full):
            batches.append(np.sort(order[begin:place]))
            begin = place
    return [*batches, np.sort(order[begin:])] if len(order) else []


def _decode_batch(rows: NDArray[np.int64], group: GroupStep, first_keys: NDArray[np.int64],
                  ends: NDArray[np.int64], tokens: int) -> DecodeBatch:
    first, end = first_keys[rows], ends[rows]
    first_page = first // tokens
    most = int((-(-end // tokens) - first_page).max())
    index = first_page[:, None] + np.arange(most)
    device = group.table_SP.device
    held = torch.from_numpy(np.minimum(index, group.table_SP.shape[1] - 1)).to(device)
    rows_S = torch.from_numpy(rows).to(device)
    pages = group.table_SP[rows_S].gather(1, held)
    position = first_page[:, None] * tokens + np.arange(most * tokens)
    seen = (position >= first[:, None]) & (position < end[:, None])
    common = np.flatnonzero(seen.all(0))
    keys = seen.shape[1]
    low, high = (int(common[0]), int(common[-1]) + 1) if len(common) else (keys, keys)
    unseen = torch.from_numpy(~seen).to(device)
    hidden = tuple((part, unseen[:, part, None]) for part in (slice(0, low), slice(high, keys))
                   if part.start < part.stop)
    mask = torch.zeros(seen.shape, device=device).masked_fill_(unseen, -torch.inf) if hidden else None
    whole = rows[-1] - rows[0] + 1 == len(rows)
    return DecodeBatch(rows=slice(int(rows[0]), int(rows[-1]) + 1) if whole else rows_S,
                       pages=pages.flatten(), num_rows=len(rows),
                       mask=None if mask is None else mask[:, None, None], hidden=hidden)
