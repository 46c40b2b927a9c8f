"""Attention of prompt chunks on a GPU by torch's own kernels: cuDNN for long fresh prompts, flash for the
rest.

Neighbouring chunks go together in one call without padding. Keys of an earlier step are gathered from their
pages.

Legend: T tokens of the chunks, M query heads, G KV heads, D head width, N arena pages, P tokens a page, K
keys.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ridgeline.blocks.step import GroupStep, Step

CUDNN_DIM = 128  # the widest head that it takes on every GPU
LONG = 2048  # tokens from which cuDNN's faster product makes up for preparing a shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Chunks that attend in one call: tokens of the step's chunks; the queries' and keys' borders int32
    [chunks + 1] on the device, and on the host the longest of each. starts, counts: the chunks on the host.
    pages_K, places_K: where the keys lie, None when they are the tokens' own."""

    tokens: slice
    borders_q: Tensor
    borders_k: Tensor
    longest_q: int
    longest_k: int
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    pages_K: Tensor | None
    places_K: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """All chunks of a step, in order."""

    runs: tuple[Run, ...]


def plan_chunks(step: Step, group: GroupStep, page_tokens: int, window: int | None) -> Chunks:
    """Which chunks of a step go together."""
    first, runs, at = step.num_decodes, [], 0
    starts, counts = step.starts[first:].tolist(), step.counts[first:].tolist()
    alone = [
        count >= LONG and start == 0 and (window is None or count <= window)
        for start, count in zip(starts, counts, strict=True)
    ]
    begin = 0
    while begin < len(starts):
        end = begin + 1
        while end < len(starts) and not alone[begin] and not alone[end]:
            end += 1
        rows = slice(begin, end)
        runs.append(_run(group.table_SP[first:][rows], starts[rows], counts[rows], at, page_tokens, window))
        at += sum(counts[rows])
        begin = end
    return Chunks(runs=tuple(runs))


def _run(
    table_SX: Tensor, starts: list[int], counts: list[int], at: int, page_tokens: int, window: int | None
) -> Run:
    device = table_SX.device
    firsts = [0 if window is None else max(0, start - window + 1) for start in starts]
    keys = [start + count - low for start, count, low in zip(starts, counts, firsts, strict=True)]
    pages = places = None
    if any(starts):
        positions = [
            torch.arange(low, low + num, device=device) for low, num in zip(firsts, keys, strict=True)
        ]
        pages = torch.cat(
            [table_SX[i, position // page_tokens] for i, position in enumerate(positions)]
        ).long()
        places = torch.cat(positions) % page_tokens
    return Run(
        tokens=slice(at, at + sum(counts)),
        borders_q=_borders(counts, device),
        borders_k=_borders(keys, device),
        longest_q=max(counts),
        longest_k=max(keys),
        starts=tuple(start - low for start, low in zip(starts, firsts, strict=True)),
        counts=tuple(counts),
        pages_K=pages,
        places_K=places,
    )


def _borders(counts: list[int], device: torch.device) -> Tensor:
    borders = torch.from_numpy(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    return borders.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else borders


def attend_chunks(
    qkv_TND: Tensor,
    keys_NPGD: Tensor,
    values_NPGD: Tensor,
    chunks: Chunks,
    *,
    num_heads: int,
    scale: float,
    window: int | None,
) -> Tensor:
    """[T, M * D]. qkv: M query, G key, G value heads, ready; its keys and values are in their pages too."""
    kv_heads = keys_NPGD.shape[2]
    parts = []
    for run in chunks.runs:
        q_TMD, k_KGD, v_KGD = qkv_TND[run.tokens].split((num_heads, kv_heads, kv_heads), 1)
        if run.pages_K is not None:
            k_KGD = keys_NPGD[run.pages_K, run.places_K].to(q_TMD.dtype)
            v_KGD = values_NPGD[run.pages_K, run.places_K].to(q_TMD.dtype)
        if q_TMD.device.type != "cuda" or q_TMD.dtype == torch.float32:
            out_TMD = _plain(q_TMD, k_KGD, v_KGD, run, scale, window)
        elif (
            run.pages_K is None
            and len(run.counts) == 1
            and run.counts[0] >= LONG
            and (window is None or run.counts[0] <= window)
            and q_TMD.shape[2] <= CUDNN_DIM
            and torch.backends.cudnn.is_available()
        ):
            out_TMD = _cudnn(q_TMD, k_KGD, v_KGD, scale)
        else:
            out_TMD = _flash(q_TMD, k_KGD, v_KGD, run, scale, window)
        parts.append(out_TMD.flatten(1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _cudnn(q_TMD: Tensor, k_KGD: Tensor, v_KGD: Tensor, scale: float) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q_TMD, k_KGD, v_KGD))
    out = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, False, 0.0, True, False, scale=scale
    )[0]
    return out[0].transpose(0, 1)


def _flash(q_TMD: Tensor, k_KGD: Tensor, v_KGD: Tensor, run: Run, scale: float, window: int | None) -> Tensor:
    """Causal from the end: a chunk's last query sees its last key."""
    sides = {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}
    return torch.ops.aten._flash_attention_forward(
        q_TMD,
        k_KGD,
        v_KGD,
        run.borders_q,
        run.borders_k,
        run.longest_q,
        run.longest_k,
        0.0,
        True,
        False,
        scale=scale,
        **sides,
    )[0]


def _plain(q_TMD: Tensor, k_KGD: Tensor, v_KGD: Tensor, run: Run, scale: float, window: int | None) -> Tensor:
    """Chunk by chunk with a mask: float32, and machines without a GPU."""
    out_TMD, q_at, k_at = torch.empty_like(q_TMD, memory_format=torch.contiguous_format), 0, 0
    for start, count in zip(run.starts, run.counts, strict=True):
        q = q_TMD[q_at : q_at + count].transpose(0, 1)[None]
        k, v = (x[k_at : k_at + start + count].transpose(0, 1)[None] for x in (k_KGD, v_KGD))
        seen = torch.ones(count, start + count, dtype=torch.bool, device=q.device).tril_(start)
        if window is not None:
            seen = seen.triu_(start - window + 1)
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=scale, enable_gqa=True
        )
        out_TMD[q_at : q_at + count] = out[0].transpose(0, 1)
        q_at, k_at = q_at + count, k_at + start + count
    return out_TMD
