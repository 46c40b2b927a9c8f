"""From what a step takes of each row to a StepPlan: reading the rows, then arrays. Decides nothing."""

from collections.abc import Sequence

import numpy as np

from ridgeline.kv.news import StepNews
from ridgeline.schedule.plan import PLACEHOLDER, SAMPLE_NEXT, Copies, Int, RowStart, StepPlan, TableDelta
from ridgeline.schedule.request import Request
from ridgeline.schedule.rows import Long, Rows, Taken

_NO_COPIES = Copies.none()
_NO_DELTA = TableDelta(row=_NO_COPIES.source, index=_NO_COPIES.source, page=_NO_COPIES.source)


def assemble(step: int, rows: Rows, taken: Taken, starts: Sequence[RowStart], news: StepNews) -> StepPlan:
    """The plan of what is taken. The rows' counters still stand before the step."""
    own = taken.counts if taken.draft is None else taken.counts - taken.draft
    decodes = taken.samples & (own == 1)
    heads = decodes.nonzero()[0]
    feed = rows.last_token.copy()
    feed[rows.in_flight > 0] = PLACEHOLDER
    row: Long = heads
    at: Long | slice = slice(None)  # the usual full house is cheaper to slice than to index
    if len(heads) < rows.size:
        others = (taken.takes ^ decodes).nonzero()[0]
        row = at = np.concatenate([heads, others])
        feed = np.concatenate([feed[heads], *[_chunk(rows, taken, other) for other in others.tolist()]])
    count = taken.counts[at].astype(np.int32)
    if taken.draft is None:
        draft = np.zeros(len(count), np.int32)
    else:
        draft = taken.draft[at].astype(np.int32)
        feed = np.insert(feed, np.repeat(np.arange(1, len(heads) + 1), draft[:len(heads)]), PLACEHOLDER)
    return StepPlan(
        step=step,
        request=taken.number[at],
        row=row.astype(np.int32),
        start=rows.scheduled[at].astype(np.int32),
        count=count,
        sample=taken.samples[at] * np.uint8(SAMPLE_NEXT),
        draft=draft,
        tokens=feed,
        num_decodes=len(heads),
        row_starts=tuple(starts),
        tables=table_deltas(news),
        copies=copies_of(news),
        adapters=tuple(set(rows.adapter[at].tolist()) - {0}) if np.count_nonzero(rows.adapter) else (),
    )


def row_start(request: Request) -> RowStart:
    """What a runner row must know of the request that takes it now."""
    return RowStart(
        request=request.number, row=request.row, params=request.params, seed=request.seed,
        prompt=request.prompt, output=np.array(request.tokens[request.num_prompt:], np.int32),
        stop_token_ids=tuple(sorted(request.stop_token_ids)),
        prompt_logprobs_from=request.prompt_logprobs_from, adapter=request.adapter)


def _chunk(rows: Rows, taken: Taken, row: int) -> Int:
    """The row's token ids of this step; a position that is not known yet is a placeholder."""
    request, last = rows.request[row], int(taken.until[row])
    first = last - int(taken.counts[row])
    assert request is not None
    if last <= request.num_prompt:
        return request.prompt[first:last]
    known = rows.tokens[row, first:min(last, int(rows.known[row]))]
    return np.concatenate([known, np.full(last - first - len(known), PLACEHOLDER, np.int32)])


def _int(values: list[int]) -> Int:
    return np.array(values, np.int32)


def table_deltas(news: StepNews) -> tuple[TableDelta, ...]:
    return tuple(TableDelta(row=_int(table.row), index=_int(table.index), page=_int(table.page))
                 if table.row else _NO_DELTA for table in news.tables)


def copies_of(news: StepNews) -> Copies:
    copies = news.copies
    if not copies.ticket:
        return _NO_COPIES
    return Copies(source_space=_int(copies.source_space), source=_int(copies.source),
                  target_space=_int(copies.target_space), target=_int(copies.target),
                  ticket=np.array(copies.ticket, np.int64))
