"""How many drafts each row verifies in a step: as many as bring the most tokens a second, mostly few or none.

A draft at place k of a row is right with probability a^k, a being the row's measured acceptance (Leviathan et
al. 2023, section 3). What a step takes is the ledger's price times what steps of as many tokens were measured
to take beyond it, so that a machine whose products grow dearer at some width is found out by itself. Knows
no speculator: who drafts, and how, is the executor's.

Legend: R runner rows, M draft slots in order of worth.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.plan import StepPlan, StepResult

Long = NDArray[np.int64]
PRIOR, PRIOR_TRIALS = 0.6, 2.0  # acceptance that is believed before any was measured, and how firmly
FADE, FADE_ALL = 0.97, 0.98  # a step, of what was counted in one row and in all
SMOOTH, RETRY = 0.2, 0.003  # a new measurement's weight; what is forgotten of widths not used, a step
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # drafts of a step that are weighed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A step as a price wants it."""

    start: Long
    count: Long
    num_sampled: int


class Speculation:
    """Chooses and learns. Arrays are by runner row.

    most: drafts of a row in a step. price: seconds of a step, up to a factor that is measured here.
    """

    def __init__(self, num_rows: int, most: int, price: Callable[[Shape | StepPlan], float]) -> None:
        self.most = most
        self._price = price
        self._ready = np.zeros(num_rows, np.int64)
        self._agreed, self._tried = np.zeros(num_rows), np.zeros(num_rows)
        self._agreed_all = self._tried_all = 0.0
        # measured over price, by decode tokens of the step; not measured: that of the next narrower one
        self._factor, self._measured = np.ones(num_rows * (most + 1) + 1), np.zeros(0, np.int64)
        self._draft_s = 0.0  # of one more draft in every row
        self._gap_s = 0.0  # that the executor idles before a step that was not planned ahead
        self._finished_s = 0.0
        self._verified, self._num_accepted = np.zeros(most + 1, np.int64), 0  # rows by drafts

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Since the start: drafts verified, those that were right, and how often a row had so many."""
        verified = self._verified.tolist()
        return {"num_draft_tokens": sum(num * times for num, times in enumerate(verified)),
                "num_accepted_tokens": self._num_accepted,
                "num_verified": {str(num): verified[num] for num in range(1, self.most + 1)}}

    def acceptance(self) -> NDArray[np.float64]:
        """The share of drafts that are right, by row."""
        prior = (self._agreed_all + PRIOR * PRIOR_TRIALS) / (self._tried_all + PRIOR_TRIALS)
        return (self._agreed + prior * PRIOR_TRIALS) / (self._tried + PRIOR_TRIALS)

    def able(self, room: Long) -> Long:
        """The most drafts of each row."""
        return np.minimum(np.minimum(self._ready, room), self.most)

    def choose(self, start: Long, counts: Long, room: Long, most: int) -> Long | None:
        """Drafts by row, None when none are worth it. A step takes counts tokens from start on; room: drafts
        that a row can take at the most; most: that the step can."""
        able = self.able(room)
        if most < 1 or not (able > 0).any():
            return None
        row_M = np.repeat(np.arange(len(able)), np.maximum(able, 0))
        place_M = np.concatenate([np.arange(1, num + 1) for num in able[able > 0].tolist()])
        worth_M = self.acceptance()[row_M] ** place_M
        order_M = np.argsort(-worth_M, kind="stable")[:most]
        row_M, tokens_M = row_M[order_M], worth_M[order_M].cumsum()
        taking = counts > 0
        start, counts = start[taking], counts[taking]
        sampled = int(np.count_nonzero(counts == 1))
        best, drafts = sampled / self._seconds(start, counts, sampled, 0), None
        for size in (*(s for s in SIZES if s < len(row_M)), len(row_M)):
            draft = np.bincount(row_M[:size], minlength=len(able))
            seconds = self._seconds(start, counts + draft[taking], sampled + size, int(draft.max()))
            rate = (sampled + tokens_M[size - 1]) / seconds
            if rate > best:
                best, drafts = rate, draft
        return drafts

    def observe(self, plan: StepPlan, result: StepResult, *, ahead: bool) -> None:
        """Learn from a committed step. ahead: the next one is on its way already."""
        drafting = result.drafting
        if drafting is None:  # the step was lost
            return
        for start in plan.row_starts:
            self._agreed[start.row] = self._tried[start.row] = self._ready[start.row] = 0
        tried = np.minimum(drafting.compared, drafting.agreed + 1)
        self._agreed *= FADE
        self._tried *= FADE
        self._agreed[plan.row] += drafting.agreed
        self._tried[plan.row] += tried
        self._agreed_all = self._agreed_all * FADE_ALL + int(drafting.agreed.sum())
        self._tried_all = self._tried_all * FADE_ALL + int(tried.sum())
        self._ready[plan.row] = drafting.ready
        verified = plan.draft > 0
        drafts = np.minimum(drafting.compared, plan.draft)[verified]
        self._verified += np.bincount(drafts, minlength=self.most + 1)
        self._num_accepted += int(drafting.agreed[verified].sum())
        if plan.num_rows == plan.num_decodes:
            self._time(plan, result, drafting.seconds)
        self._finished_s = 0.0 if ahead else result.finished_s

    def _time(self, plan: StepPlan, result: StepResult, draft_s: float) -> None:
        """Of a step of decodes alone."""
        tokens, now = plan.num_tokens, (result.finished_s - result.started_s - draft_s) / self._price(plan)
        if tokens in self._measured:
            now = self._factor[tokens] + SMOOTH * (now - self._factor[tokens])
        else:
            self._measured = np.sort(np.append(self._measured, tokens))
        self._factor += RETRY * np.minimum(now - self._factor, 0.0)
        self._factor[tokens: _after(self._measured, tokens)] = now
        if plan.draft.any():
            each_s = draft_s / int(plan.draft.max())
            self._draft_s += SMOOTH * (each_s - self._draft_s)
        if self._finished_s and not plan.row_starts:
            gap_s = min(result.started_s - self._finished_s, result.finished_s - result.started_s)
            self._gap_s += SMOOTH * (max(gap_s, 0.0) - self._gap_s)

    def _seconds(self, start: Long, count: Long, sampled: int, deepest: int) -> float:
        """Of a step with drafts, the deepest row's `deepest`."""
        extra_s = deepest * self._draft_s + self._gap_s if deepest else 0.0
        price_s = self._price(Shape(start=start, count=count, num_sampled=sampled))
        return price_s * float(self._factor[sampled]) + extra_s


def _after(measured: Long, tokens: int) -> int | None:
    """The next wider step that was measured."""
    wider = measured[measured > tokens]
    return int(wider[0]) if len(wider) else None
