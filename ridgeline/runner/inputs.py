"""StepPlan -> Step: host arrays of rows become flat device tensors of tokens.

Legend: R rows of the plan, T flat tokens.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.blocks.step import GroupStep, Step
from ridgeline.runner.rows import Rows
from ridgeline.runner.stage import stage
from ridgeline.schedule.plan import PLACEHOLDER, Copies, StepPlan
from ridgeline.spec.cache import CacheLayout

Long = NDArray[np.int64]


def build_step(plan: StepPlan, rows: Rows, layout: CacheLayout, *, apart: bool = False,
               wanted: Long | None = None) -> Step:
    """Gather what the plan's rows feed in; PLACEHOLDERs become the row's last sampled token, on the
    device.

    A decode that verifies drafts becomes a row for each of its tokens: all write before any attends, so each
    sees what it would alone, by the very path of a decode. `runs` says which rows are one sequence's. apart:
    so does every token of a prompt. wanted: see `Step.wanted_W`.
    """
    counts, starts = plan.count.astype(np.int64), plan.start.astype(np.int64)
    ends = starts + counts
    row_T = np.repeat(plan.row, counts).astype(np.int64)
    position_T = np.arange(plan.num_tokens) + np.repeat(ends - counts.cumsum(), counts)
    reach_T, row_R = np.maximum(rows.num_prompt[row_T], position_T + 1), plan.row.astype(np.int64)
    num_decodes, runs = plan.num_decodes, None
    if apart:
        num_decodes = len(counts)
    if plan.draft.any() or (apart and len(position_T) > num_decodes):
        runs = counts[:num_decodes]
        heads = int(runs.sum())
        starts, row_R = (np.concatenate([flat_T[:heads], by_row[num_decodes:]])
                         for flat_T, by_row in ((position_T, starts), (row_T, row_R)))
        counts = np.concatenate([np.ones(heads, np.int64), counts[num_decodes:]])
        ends, num_decodes = starts + counts, heads
    device = rows.last_token.device
    whole = stage(np.stack([position_T, row_T, plan.tokens.astype(np.int64), reach_T]), device)
    positions, rows_T, ids, reach = whole.unbind()
    unknown = np.flatnonzero(plan.tokens == PLACEHOLDER)
    if len(unknown):
        ids[stage(unknown, device)] = rows.last_token[stage(row_T[unknown], device)]
    rows_R = stage(row_R, device)
    adapter_T = rows.adapter[row_T]
    return Step(
        ids_T=ids, positions_T=positions, starts=starts, counts=counts, num_decodes=num_decodes, runs=runs,
        adapter_T=adapter_T if adapter_T.any() else None, reach_T=reach,
        lengths_S=stage(ends.astype(np.int32), device),
        wanted_W=None if wanted is None else stage(wanted, device),
        groups=tuple(_group(table, group.tokens_per_page, rows_R, rows_T, positions)
                     for table, group in zip(rows.tables, layout.groups, strict=True)))


def select(plan: StepPlan, places: Long) -> StepPlan:
    """The part of a plan that concerns some of its rows (ascending places); its news are left out."""
    return plan if len(places) == plan.num_rows else _picked(plan, places)


def drafts_as_chunks(plan: StepPlan, places: Long) -> tuple[StepPlan, Long]:
    """`select` for kernels by which a decode cannot see what another of the same step writes: rows that
    verify drafts stand behind the other decodes, as chunks. Returns the places as they stand too."""
    drafted = plan.draft[places] > 0
    if not drafted.any():
        return select(plan, places), places
    alone = ~drafted & (places < plan.num_decodes)
    places = np.concatenate([places[alone], places[~alone]])
    part = _picked(plan, places)
    alone_first = msgspec.structs.replace(
        part, draft=np.zeros_like(part.draft), num_decodes=int(alone.sum()))
    return alone_first, places


def idle_prompts(num_tokens: int, *, most_rows: int, most: int) -> StepPlan:
    """A step of prompts of at most `most` tokens each, whole, that nobody asked for."""
    counts = [most] * min(num_tokens // most, most_rows)
    if num_tokens % most and len(counts) < most_rows:
        counts.append(num_tokens % most)
    rows, zeros = np.arange(len(counts), dtype=np.int32), np.zeros(len(counts), np.int32)
    return StepPlan(
        step=0, request=rows.astype(np.int64), row=rows, start=zeros, count=np.array(counts, np.int32),
        sample=zeros.astype(np.uint8), draft=zeros, tokens=np.zeros(sum(counts), np.int32), num_decodes=0,
        row_starts=(), tables=(), copies=Copies.none())


def _picked(plan: StepPlan, places: Long) -> StepPlan:
    firsts = np.concatenate(([0], plan.count.cumsum()))
    tokens = [plan.tokens[firsts[place]: firsts[place + 1]] for place in places]
    return msgspec.structs.replace(
        plan, request=plan.request[places], row=plan.row[places], start=plan.start[places],
        count=plan.count[places], sample=plan.sample[places], draft=plan.draft[places],
        tokens=np.concatenate(tokens), num_decodes=int((places < plan.num_decodes).sum()), row_starts=(),
        tables=(), copies=Copies.none())


def _group(table: Tensor, tokens_per_page: int, row_R: Tensor, row_T: Tensor, position_T: Tensor,
           ) -> GroupStep:
    """A state group (tokens_per_page 0) has no slots: its pages are found by the table alone."""
    if not tokens_per_page:
        return GroupStep(table_SP=table[row_R], slots_T=position_T[:0])
    pages = table[row_T, position_T // tokens_per_page].long()
    return GroupStep(table_SP=table[row_R], slots_T=pages * tokens_per_page + position_T % tokens_per_page)
