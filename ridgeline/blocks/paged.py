"""Paged keys for attention in plain torch: which rows go together, what they gather, what their queries see.

Owns batches and masks; knows neither what an entry holds (entries are [N, tokens_per_page, ...]) nor how it
is attended to. Decode rows are gathered by block table into batches of similar length; each prompt chunk
gathers its own cached prefix.

Legend: T tokens, S rows, N arena pages, P pages of a row, K keys, E elements of an entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.blocks.step import GroupStep, Step

GATHER_BYTES = 1 << 20  # a batch's keys and values should stay in a core's cache between gather and use
CUT_BYTES = 256 << 10  # padding that costs more than one more batch of decodes
QUERY_BLOCK = 256  # queries whose mask is held at once


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

    def write(self, entries: Tensor, new_TE: Tensor) -> None:
        """Put each token's entry in its place. new_TE has the dtype and inner shape of entries."""
        entries.index_put_((self.pages_T, self.offsets_T), new_TE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedPlan:
    """Once a step for all layers of a share key: the tokens' angles [T, R] beside the plan."""

    cos_TR: Tensor
    sin_TR: Tensor
    plan: AttentionPlan


def plan_attention(step: Step, group: GroupStep, entries: Tensor, window: int | None, *,
                   written: bool = False, apart: bool = False) -> AttentionPlan:
    """Choose batches and masks. entries [N, tokens_per_page, ...]; only its shape and dtype are read.

    written: the step's own entries are in their pages before anybody attends, so that chunks gather them too.
    apart: each decode row is a batch of its own, so that not a bit of it hangs on the others.
    """
    tokens, ends = entries.shape[1], step.starts + step.counts
    first_keys = np.zeros_like(ends) if window is None else np.maximum(step.starts - window + 1, 0)
    first_pages, last_pages = first_keys // tokens, -(-ends // tokens)
    page_bytes = entries[0].numel() * entries.element_size()
    decode_pages = (last_pages - first_pages)[: step.num_decodes]
    together = list(np.arange(step.num_decodes)[:, None]) if apart else _similar(decode_pages, page_bytes)
    decodes = tuple(_decode_batch(rows, group, first_keys, ends, tokens) for rows in together)
    chunks, token = [], step.num_decodes
    for row in range(step.num_decodes, len(ends)):
        start, first, count = int(step.starts[row]), int(first_keys[row]), int(step.counts[row])
        held = last_pages if written or first < start else first_pages
        pages = group.table_SP[row, first_pages[row]: held[row]]
        chunks.append(Chunk(tokens=slice(token, token + count), start=start, first_key=first, pages=pages,
                            skip=first % tokens))
        token += count
    most = max((*(len(d.pages) for d in decodes), *(len(c.pages) for c in chunks)), default=0)
    return AttentionPlan(pages_T=group.slots_T // tokens, offsets_T=group.slots_T % tokens, decodes=decodes,
                         chunks=tuple(chunks), scratch=entries.new_empty(most, entries[0].numel()))


def decode_keys(entries: Tensor, batch: DecodeBatch, scratch: Tensor, dtype: torch.dtype) -> Tensor:
    """The batch's entries [S, K, E], those that a row does not see as zeros."""
    width = entries[0, 0].numel()
    kept_SKE = _gather(entries, batch.pages, scratch).view(batch.num_rows, -1, width).to(dtype)
    for columns, unseen in batch.hidden:
        kept_SKE[:, columns].masked_fill_(unseen, 0.0)
    return kept_SKE


def chunk_keys(entries: Tensor, chunk: Chunk, scratch: Tensor, new_TE: Tensor | None) -> Tensor:
    """The entries [K, ...] that the chunk sees from chunk.first_key on; new_TE are the step's own, None where
    the plan has them as written."""
    if new_TE is not None and not len(chunk.pages):
        return new_TE[chunk.tokens]
    kept_KE = _gather(entries, chunk.pages, scratch).view(-1, *entries.shape[2:])
    count = chunk.tokens.stop - chunk.tokens.start
    return kept_KE[chunk.skip : chunk.skip + chunk.start - chunk.first_key + count]


def query_blocks(
    chunk: Chunk, count: int, window: int | None, device: torch.device
) -> Iterator[tuple[slice, slice, Tensor]]:
    """(queries, keys, seen [queries, keys]) of a chunk of `count` tokens, few queries at a time, so that no
    mask is large. Keys count from chunk.first_key."""
    for begin in range(0, count, QUERY_BLOCK):
        end = min(begin + QUERY_BLOCK, count)
        query = chunk.start + begin
        low = chunk.first_key if window is None else max(chunk.first_key, query - window + 1)
        seen = torch.ones(end - begin, chunk.start + end - low, dtype=torch.bool, device=device)
        seen = seen.tril_(query - low)
        if window is not None:
            seen = seen.triu_(query - low - window + 1)
        yield slice(begin, end), slice(low - chunk.first_key, chunk.start + end - chunk.first_key), seen


def _gather(entries: Tensor, pages: Tensor, scratch: Tensor) -> Tensor:
    """The pages' entries as [len(pages), tokens * E], in scratch."""
    return torch.index_select(entries.flatten(1), 0, pages, out=scratch[: len(pages)])


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
