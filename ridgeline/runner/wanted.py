"""Which of a step's tokens are asked for behind the last layer: of most prompts only the end.

Legend: R rows of the plan, T its tokens, W those that are wanted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.plan import StepPlan

Long = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """tokens: ascending among the T, None where all are wanted. ends, counts [R]: where each row's end among
    the P, and how many they are: its last ones."""

    tokens: Long | None
    ends: Long
    counts: Long

    @classmethod
    def of(cls, plan: StepPlan, tails: Long, whole: NDArray[np.bool_]) -> "Wanted":
        """tails [R]: how many are wanted at each row's end; whole [R]: where all of them are."""
        counts = plan.count.astype(np.int64)
        given = np.where(whole, counts, tails)
        ends = given.cumsum()
        tokens = None
        if ends[-1] < plan.num_tokens:
            tokens = np.arange(ends[-1]) + np.repeat(counts.cumsum() - ends, given)
        return cls(tokens=tokens, ends=ends, counts=given)

    def last(self, sizes: Long) -> Long:
        """Where each row's last `sizes` [R] stand among the W, row after row."""
        return np.arange(int(sizes.sum())) + np.repeat(self.ends - sizes.cumsum(), sizes)

    def span(self, place: int) -> slice:
        """A row's among the W."""
        return slice(int(self.ends[place] - self.counts[place]), int(self.ends[place]))
