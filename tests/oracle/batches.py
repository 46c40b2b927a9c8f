"""Several texts at once on our own road: their prompts in shared steps, then their last tokens one by one."""

import numpy as np
import torch
from torch import Tensor

from ridgeline.blocks.step import GroupStep, Step
from ridgeline.nn.build import Model, build_model
from ridgeline.runner.cache import PageCache
from ridgeline.spec.cache import CacheLayout, plan_layout
from tests.oracle.ours import BLOCK_TOKENS, Ours


def batched(ours: Ours, texts: list[list[int]], decodes: int = 3) -> list[Tensor]:
    """Logits [tokens, vocabulary] of each text; the last `decodes` tokens take the decode road, all rows in
    one step, and the first of two prompt steps holds odd parts of the prompts."""
    layout = plan_layout(ours.spec.cache(4), block_tokens=BLOCK_TOKENS)
    pages = [[-(-len(text) // group.tokens_per_page) for group in layout.groups] for text in texts]
    cache = PageCache(layout, int(np.sum(pages)) + 1, torch.device("cpu"))
    cache.arena.fill_(0x7F)
    model = build_model(ours.spec, ours.weights, torch.float32)
    model.bind_cache(layout, cache.region, torch.float32)
    free = np.random.default_rng(0).permutation(np.arange(1, int(np.sum(pages)) + 1)).tolist()
    tables = []
    for number in range(len(layout.groups)):
        table = torch.zeros(len(texts), max(count[number] for count in pages), dtype=torch.int32)
        for row, count in enumerate(pages):
            table[row, :count[number]] = torch.tensor([free.pop() for _ in range(count[number])])
        tables.append(table)
    out: list[list[Tensor]] = [[] for _ in texts]
    starts = np.zeros(len(texts), np.int64)
    ends = [[(len(text) - decodes) // 2 + i % 2 for i, text in enumerate(texts)]]
    ends += [[len(text) - left for text in texts] for left in range(decodes, -1, -1)]
    for end in ends:
        counts = np.array(end) - starts
        logits = _run(model, layout, tables, texts, starts, counts)
        for row, part in enumerate(logits.split(counts.tolist())):
            out[row].append(part)
        starts = starts + counts
    return [torch.cat(parts) for parts in out]


def _run(model: Model, layout: CacheLayout, tables: list[Tensor], texts: list[list[int]],
         starts: np.ndarray, counts: np.ndarray) -> Tensor:
    row_T = torch.from_numpy(np.repeat(np.arange(len(texts)), counts))
    positions = torch.cat([torch.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
    groups = []
    for group, table in zip(layout.groups, tables, strict=True):
        size = group.tokens_per_page
        groups.append(GroupStep(table_SP=table,
                                slots_T=table[row_T, positions // size].long() * size + positions % size))
    num_decodes = len(texts) if (counts == 1).all() else 0
    step = Step(
        ids_T=torch.tensor([texts[r][p] for r, p in zip(row_T.tolist(), positions.tolist(), strict=True)]),
        positions_T=positions, reach_T=torch.tensor([len(texts[r]) for r in row_T.tolist()]),
        lengths_S=torch.from_numpy(starts + counts).int(), starts=starts, counts=counts,
        num_decodes=num_decodes, groups=tuple(groups))
    return model.logits(model.forward(step), prefill_from=num_decodes)
