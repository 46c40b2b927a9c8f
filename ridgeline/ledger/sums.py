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
        start_R, count_R = np.asarray(start), np.asarray(count)
        rows, tokens = float(len(count_R)), float(np.add.reduce(count_R))
        seen = self._decodes(start_R, rows) if tokens == rows else self._chunks(start_R, count_R)
        return np.array([1.0, tokens, rows, float(projected), float(projected > 0), *seen])

    def _decodes(self, start_R: NDArray[Any], rows: float) -> list[float]:
        """(pairs, keys) by window where each row has one token, which makes the two equal."""
        seen: list[float] = []
        for bound in self.windows:
            before_R = start_R if bound is None else np.minimum(start_R, bound - 1)
            seen += [float(np.add.reduce(before_R)) + rows] * 2
        return seen

    def _chunks(self, start_R: NDArray[Any], count_R: NDArray[Any]) -> list[float]:
        """(pairs, keys) by window of any rows. All sums are inner products of a few vectors over the rows,
        one of them all ones: one product."""
        m_KR = np.empty((3 + 2 * len(self._bounded), len(count_R)))
        m_KR[0], m_KR[1] = 1.0, count_R
        np.add(m_KR[1], start_R, out=m_KR[2])
        for i, window in enumerate(self._bounded):
            # Keys that the window hides from each row's last query (l) and from its first (f). Query by
            # query they grow by one, so that a row's queries together miss (l (l + 1) - f (f - 1)) / 2.
            np.subtract(m_KR[2], window, out=m_KR[3 + 2 * i])
            np.subtract(start_R, window - 1.0, out=m_KR[4 + 2 * i])
        if self._bounded:
            np.maximum(m_KR[3:], 0.0, out=m_KR[3:])
        dot = m_KR.dot(m_KR.T).tolist()
        every_pair, ends = dot[1][2] - (dot[1][1] - dot[0][1]) * 0.5, dot[0][2]
        seen: list[float] = []
        last = 3
        for bound in self.windows:
            if bound is None:
                seen += [every_pair, ends]
                continue
            first = last + 1
            hidden = (dot[last][last] + dot[0][last] - dot[first][first] + dot[0][first]) * 0.5
            seen += [every_pair - hidden, ends - dot[0][first]]
            last += 2
        return seen

    def decodes(self, start_N: NDArray[Any]) -> NDArray[np.float64]:
        """The sums [S, N] of N steps of one decode each, with start_N [N] tokens before it."""
        sums_SN = np.ones((len(self.terms), len(start_N)))
        for i, bound in enumerate(self.windows):
            keys_N = (start_N if bound is None else np.minimum(start_N, bound - 1)) + 1
            sums_SN[len(_SCALARS) + 2 * i:len(_SCALARS) + 2 * i + 2] = keys_N
        return sums_SN

    def sums(self, start: Counts, count: Counts, projected: int) -> StepSums:
        """The same as a value with names."""
        values = [int(v) for v in self.vector(start, count, projected)]
        seen = values[len(_SCALARS):]
        return StepSums(tokens=values[1], rows=values[2], projected=values[3],
                        windows={w: (seen[2 * i], seen[2 * i + 1]) for i, w in enumerate(self.windows)})
