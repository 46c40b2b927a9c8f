"""From counts by row to a StepPlan: pure reading of the rows, then arrays. Decides nothing."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.kv.manager import StepNews
from ridgeline.schedule.plan import (
    PLACEHOLDER,
    SAMPLE_NEXT,
    SAMPLE_NONE,
    Copies,
    RowStart,
    StepPlan,
    TableDelta,
)
from ridgeline.schedule.request import Request
from ridgeline.schedule.rows import Rows

Long = NDArray[np.int64]
Int = NDArray[np.int32]


def assemble(step: int, rows: Rows, counts: Long, starts: Sequence[RowStart], news: StepNews) -> StepPlan:
    """The plan in which row r computes counts[r] tokens. The rows' counters still stand before the step."""
    taking = np.flatnonzero(counts)
    count = counts[taking]
    start = rows.scheduled[taking]
    samples = start + count == rows.known[taking] + rows.in_flight[taking]
    decodes = samples & (count == 1)
    num_decodes = int(np.count_nonzero(decodes))
    if num_decodes < len(taking):
        order = np.argsort(~decodes, kind="stable")
        taking, count, start, samples = taking[order], count[order], start[order], samples[order]
    heads = taking[:num_decodes]
    tokens = [np.where(rows.in_flight[heads] > 0, PLACEHOLDER, rows.last_token[heads]).astype(np.int32)]
    for row, first, size in zip(taking[num_decodes:].tolist(), start[num_decodes:].tolist(),
                                count[num_decodes:].tolist()):
        request = rows.request[row]
        assert request is not None
        tokens.append(_known_tokens(request, first, first + size))
    return StepPlan(
        step=step,
        request=rows.number[taking],
        row=taking.astype(np.int32),
        start=start.astype(np.int32),
        count=count.astype(np.int32),
        sample=np.where(samples, SAMPLE_NEXT, SAMPLE_NONE).astype(np.uint8),
        draft=np.zeros(len(taking), np.int32),
        tokens=np.concatenate(tokens),
        num_decodes=num_decodes,
        row_starts=tuple(starts),
        tables=tuple(TableDelta(row=_int(table.row), index=_int(table.index), page=_int(table.page))
                     for table in news.tables),
        copies=_copies(news),
    )


def row_start(request: Request) -> RowStart:
    """What a runner row must know of the request that takes it now."""
    return RowStart(
        request=request.number, row=request.row, params=request.params, seed=request.seed,
        prompt=request.prompt, output=np.array(request.tokens[request.num_prompt:], np.int32),
        stop_token_ids=tuple(sorted(request.stop_token_ids)),
        prompt_logprobs_from=request.prompt_logprobs_from)


def _known_tokens(request: Request, first: int, last: int) -> Int:
    """Ids of positions first..last-1; a position that is not known yet is a placeholder."""
    if last <= request.num_prompt:
        return request.prompt[first:last]
    known = request.tokens[first:last]
    return np.array(known + [PLACEHOLDER] * (last - first - len(known)), np.int32)


def _int(values: list[int]) -> Int:
    return np.array(values, np.int32)


def _copies(news: StepNews) -> Copies:
    copies = news.copies
    if not copies.ticket:
        return Copies.none()
    space = np.zeros(len(copies.ticket), np.int32)
    return Copies(source_space=space, source=_int(copies.source), target_space=space,
                  target=_int(copies.target), ticket=np.array(copies.ticket, np.int64))
