"""The values of a leap (`schedule.leap`): where it can go, what an executor foresees of it, what came of it.

Legend: K steps, N rows that run, in row order. A row's tokens come with the commits from `late` to before
`stop`.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.plan import Int, StepPlan
from ridgeline.schedule.request import Output
from ridgeline.schedule.rows import Long, Taken

Begun = Sequence[tuple[int, Taken]]  # steps in flight, by number
Seconds = NDArray[np.float64]


class Course(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a leap can go, by row [N]. row: the rows. request: theirs. scheduled: positions below it are
    computed once the row's last step in flight is, the last-th of those. feeds: steps that it can still be
    planned for, all decodes. late, stop: see above, without an end to the leap. most: steps that a leap may
    have, for want of pages, or since somebody waits for the first to end."""

    row: Long
    request: Long
    scheduled: Long
    last: Long
    feeds: Long
    late: Long
    stop: Long
    most: int


class Future(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an executor says of the next steps: when each starts and ends [K], and the tokens [K, N], none of
    which ends a request; a token of a step that brings its row none means nothing. num_plans: steps that are
    planned behind those in flight: K, or one fewer where somebody has come before the last has ended."""

    started_s: Seconds
    finished_s: Seconds
    tokens: Int
    num_plans: int


class Landed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """After a leap: the steps in flight with their plans, and of each that was planned (up to K of them) its
    rows, the requests that ran and the pages that they held. news: of first tokens and of ends, in order."""

    begun: Begun
    plans: Sequence[StepPlan]
    num_rows: Long
    running: Long
    used_pages: Long
    news: Sequence[Output]


class Leap(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Steps that were committed without a record each [K]: when each started and finished, its rows, and the
    share of it that was prefill (by tokens); requests that ran and pages that they held after it was planned.
    num_preemptions: made by those plans. news: of first tokens and ends; that of other tokens is left out."""

    started_s: Seconds
    finished_s: Seconds
    num_rows: Long
    prefill_share: Seconds
    running: Long
    used_pages: Long
    num_preemptions: int
    news: Sequence[Output]

    @property
    def num_steps(self) -> int:
        return len(self.finished_s)
