"""A step's sums in closed form: what every cost line is linear in. Takes arrays, so it knows no plan type.

Legend: R rows, S sums. A row's `count` new tokens stand at positions start .. start + count - 1.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.spec.cost import CONTEXT, ONE, PAIRS, PROJECTED, PROJECTS, ROWS, TOKENS, StepSums, Term

Counts = NDArray[Any] | Sequence[int]

_SCALARS = (ONE, TOKENS, ROWS, PROJECTED, PROJECTS)


class StepShape(Protocol):
    """What the ledger reads of a step; `schedule.plan.StepPlan` is one.

    start [R] tokens before the row's first new one, count [R] new tokens (int). num_sampled: projected
    positions.
    """

    @property
    def start(self) -> NDArray[Any]: ...

    @property
    def count(self) -> NDArray[Any]: ...

    @property
    def num_sampled(self) -> int: ...


def _hide(new_R: NDArray[np.float64], end_R: NDArray[np.float64], out_2R: NDArray[np.float64],
          window: int) -> None:
    """Keys that the window hides from each row's last query (l) and from its first (f). Query by query they
    grow by one, so that a row's queries together miss (l (l + 1) - f (f - 1)) / 2."""
    np.subtract(end_R, float(window), out=out_2R[0])
    np.subtract(end_R, new_R, out=out_2R[1])
    out_2R[1] -= window - 1.0
    np.maximum(out_2R, 0.0, out=out_2R)


class Summer:
    """Sums of steps as vectors over a fixed order of terms.

    windows: the attention windows of the model, None for full attention. A query at position t sees
    min(t + 1, window) keys (`spec.cache.Window`).
    """

    def __init__(self, windows: Iterable[int | None]) -> None:
        self.windows = tuple(dict.fromkeys(windows))
        self._bounded = tuple(window for window in self.windows if window is not None)
        pairs = tuple((name, window) for window in self.windows for name in (PAIRS, CONTEXT))
        self.terms: tuple[Term, ...] = tuple((name, None) for name in _SCALARS) + pairs

    def vector(self, start: Counts, count: Counts, projected: int) -> NDArray[np.float64]:
        """The sums [S] in the order of `terms`; exact below 2**53."""
        # All sums are inner products of a few vectors over the rows, one of them all ones: one product.
        m_KR = np.empty((3 + 2 * len(self._bounded), len(count)))
        m_KR[0], m_KR[1] = 1.0, count
        np.add(m_KR[1], start, out=m_KR[2])
        for i, window in enumerate(self._bounded):
            _hide(m_KR[1], m_KR[2], m_KR[3 + 2 * i:5 + 2 * i], window)
        dot = (m_KR @ m_KR.T).tolist()
        rows, tokens, ends = dot[0][:3]
        every_pair = dot[1][2] - (dot[1][1] - tokens) * 0.5
        values = [1.0, tokens, rows, float(projected), float(projected > 0)]
        last = 3
        for bound in self.windows:
            if bound is None:
                values += (every_pair, ends)
                continue
            first = last + 1
            hidden = (dot[last][last] + dot[0][last] - dot[first][first] + dot[0][first]) * 0.5
            values += (every_pair - hidden, ends - dot[0][first])
            last += 2
        return np.array(values)

    def sums(self, start: Counts, count: Counts, projected: int) -> StepSums:
        """The same as a value with names."""
        values = [int(v) for v in self.vector(start, count, projected)]
        seen = values[len(_SCALARS):]
        return StepSums(tokens=values[1], rows=values[2], projected=values[3],
                        windows={w: (seen[2 * i], seen[2 * i + 1]) for i, w in enumerate(self.windows)})
