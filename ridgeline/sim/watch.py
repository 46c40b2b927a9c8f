"""What happened in a run, for pictures: which slot did what when, and how full the cache was. Costs memory
for every step, so that only what is looked at is watched.

A step's rows are in its plan, and when it ran is in its record. This joins both.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ridgeline.base.trace import Record, StepRecord
from ridgeline.schedule.plan import StepPlan
from ridgeline.sim.outcome import Meter

PREFILL, DECODE, IDLE = "prefill", "decode", "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A slot from begin_s to end_s: it computes a prompt or answers, or it is held and takes no part: its
    request waits beside others' steps, or is done and its batch is not."""

    slot: int
    kind: str
    request: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A step's rows: [R] slots, their requests, and whether each decodes."""

    row: NDArray[np.int32]
    request: NDArray[np.int64]
    decodes: NDArray[np.bool_]


class Watch:
    """A trace of one engine, told of its plans too; it takes no leaps, since it wants each step."""

    def __init__(self, num_pages: int, *, batch_holds: bool = False) -> None:
        self.meter = Meter(num_pages, batch_holds=batch_holds)
        self._seen: dict[int, _Seen] = {}
        self._num_pages = num_pages - 1
        self._batch_holds = batch_holds
        self._steps: list[StepRecord] = []

    def add(self, record: Record) -> None:
        self.meter.add(record)
        if isinstance(record, StepRecord):
            self._steps.append(record)

    def planned(self, plan: StepPlan) -> None:
        self._seen[plan.step] = _Seen(row=plan.row, request=plan.request,
                                      decodes=np.arange(plan.num_rows) < plan.num_decodes)

    def close(self) -> None:
        """Nothing is held."""

    def occupancy(self) -> tuple[list[float], list[float]]:
        """(seconds at which steps began, share of the cache's pages that requests held)."""
        return ([step.started_s for step in self._steps],
                [step.used_pages / self._num_pages for step in self._steps])

    def segments(self) -> list[Segment]:
        """By slot, then by time."""
        slots: dict[int, list[Segment]] = defaultdict(list)
        for step in self._steps:
            seen = self._seen[step.step]
            for slot, request, decodes in zip(seen.row.tolist(), seen.request.tolist(),
                                              seen.decodes.tolist()):
                mine = slots[slot]
                if mine and mine[-1].request == request:
                    _idle(mine, step.started_s)
                _grow(mine, Segment(slot=slot, kind=DECODE if decodes else PREFILL, request=request,
                                    begin_s=step.started_s, end_s=step.finished_s))
        if self._batch_holds:
            ends_s = _batch_ends(self._steps)
            slots = {slot: _held(mine, ends_s) for slot, mine in slots.items()}
        return [one for slot in sorted(slots) for one in slots[slot]]


def _grow(mine: list[Segment], more: Segment) -> None:
    """Add to the last segment what goes on with it, else begin another."""
    last = mine[-1] if mine else None
    if last and (last.kind, last.request, last.end_s) == (more.kind, more.request, more.begin_s):
        mine[-1] = replace(last, end_s=more.end_s)
    else:
        mine.append(more)


def _idle(mine: list[Segment], until_s: float) -> None:
    if mine[-1].end_s < until_s:
        mine.append(replace(mine[-1], kind=IDLE, begin_s=mine[-1].end_s, end_s=until_s))


def _batch_ends(steps: Sequence[StepRecord]) -> list[float]:
    """When static batches ended: before prompts that follow decodes, and at the last step."""
    ends = [before.finished_s for before, step in pairwise(steps)
            if step.num_chunks and not before.num_chunks]
    return [*ends, *(step.finished_s for step in steps[-1:])]


def _held(mine: list[Segment], ends_s: Sequence[float]) -> list[Segment]:
    """With what a slot is held after its request, until its batch has ended."""
    found: list[Segment] = []
    for i, one in enumerate(mine):
        found.append(one)
        if i + 1 == len(mine) or mine[i + 1].request != one.request:
            _idle(found, ends_s[bisect_left(ends_s, one.end_s)])
    return found
