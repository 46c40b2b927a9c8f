"""A step's sums in closed form: what every cost line is linear in. Takes arrays, so it knows no plan type.

Legend: R rows, S sums. A row's `count` new tokens stand at positions start .. start + count - 1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.spec.cost import (
    CONTEXT,
    DISTINCT,
    FEW,
    MOST_FEW,
    ONE,
    PAIRS,
    PROJECTED,
    PROJECTS,
    ROWS,
    TOKENS,
    Router,
    StepSums,
    Term,
    expected_distinct,
)

Counts = NDArray[Any] | Sequence[int]

_SCALARS = (ONE, TOKENS, ROWS, PROJECTED, PROJECTS)
_FEW = 8  # chunks that are cheaper to count one by one than all rows in one product


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """`rows` equal rows of a step (a fraction: on average), each of `count` tokens behind `start`.

    projected: positions a row projects. shared: tokens of a prefix that the rows read together, once.
    """

    rows: float
    start: int
    count: int
    projected: float = 1.0
    shared: int = 0


def _pairs(num_tokens: int, window: int | None) -> int:
    """(query, key) pairs of a sequence's first num_tokens queries."""
    hidden = 0 if window is None or num_tokens <= window else num_tokens - window
    return (num_tokens * (num_tokens + 1) - hidden * (hidden + 1)) // 2


class Summer:
    """Sums of steps as vectors over a fixed order of terms.

    windows: the attention windows of the model, None for full attention. A query at position t sees
    min(t + 1, window) keys (`spec.cache.Window`). routers: those of its mixtures of experts. few:
    whether rows of at most MOST_FEW tokens are counted apart too.
    """

    def __init__(self, windows: Iterable[int | None], routers: Iterable[Router] = (), *,
                 few: bool = False) -> None:
        self.windows = tuple(dict.fromkeys(windows))
        self._bounded = tuple(window for window in self.windows if window is not None)
        pairs = tuple((name, window) for window in self.windows for name in (PAIRS, CONTEXT))
        self._routers = tuple(dict.fromkeys(routers))
        chosen = tuple((DISTINCT, router) for router in self._routers)
        self._few = few
        apart = tuple((name, None) for name in FEW) if few else ()
        self.terms: tuple[Term, ...] = tuple((name, None) for name in _SCALARS) + pairs + chosen + apart

    def vector(self, start: Counts, count: Counts, projected: int) -> NDArray[np.float64]:
        """The sums [S] in the order of `terms`; exact below 2**53."""
        start_R, count_R = np.asarray(start), np.asarray(count)
        rows, chunks = float(len(count_R)), (count_R > 1).nonzero()[0]
        if len(chunks) > _FEW:
            tokens, seen = self._many_chunks(start_R, count_R)
        else:
            tokens, seen = rows, self._first_tokens(start_R, rows)
            if len(chunks):
                tokens += self._later_tokens(start_R[chunks].tolist(), count_R[chunks].tolist(), seen)
        if self._routers:
            seen = [*seen, *(expected_distinct(router, tokens) for router in self._routers)]
        if self._few:
            few_R = count_R <= MOST_FEW
            count_F = count_R[few_R].astype(np.float64)
            end_F = start_R[few_R] + count_F
            pairs = float(end_F.dot(count_F) - count_F.dot(count_F - 1) / 2)
            seen = [*seen, float(count_F.sum()), pairs, float(end_F.sum())]
        return np.array([1.0, tokens, rows, float(projected), float(projected > 0), *seen])

    def _first_tokens(self, start_R: NDArray[Any], rows: float) -> list[float]:
        """(pairs, keys) by window of the first token of each row, which makes the two equal."""
        seen: list[float] = []
        for bound in self.windows:
            before_R = start_R if bound is None else np.minimum(start_R, bound - 1)
            seen += [float(np.add.reduce(before_R)) + rows] * 2
        return seen

    def _later_tokens(self, starts: list[int], counts: list[int], seen: list[float]) -> int:
        """Add to `seen` what chunks have beyond their first token; how many tokens that is."""
        more = sum(counts) - len(counts)
        for i, window in enumerate(self.windows):
            for start, count in zip(starts, counts):
                seen[2 * i] += _pairs(start + count, window) - _pairs(start + 1, window)
            seen[2 * i + 1] += more
        return more

    def _many_chunks(self, start_R: NDArray[Any], count_R: NDArray[Any]) -> tuple[float, list[float]]:
        """The same of any rows. All sums are inner products of a few vectors over the rows, one of them all
        ones: one product."""
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
        dot: list[list[float]] = m_KR.dot(m_KR.T).tolist()
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
        return dot[0][1], seen

    def decodes(self, start_N: NDArray[Any]) -> NDArray[np.float64]:
        """The sums [S, N] of N steps of one decode each, with start_N [N] tokens before it."""
        sums_SN = np.ones((len(self.terms), len(start_N)))
        for i, bound in enumerate(self.windows):
            keys_N = (start_N if bound is None else np.minimum(start_N, bound - 1)) + 1
            sums_SN[len(_SCALARS) + 2 * i:len(_SCALARS) + 2 * i + 2] = keys_N
        for i, router in enumerate(self._routers, len(_SCALARS) + 2 * len(self.windows)):
            sums_SN[i] = expected_distinct(router, 1)
        if self._few:
            sums_SN[-2:] = start_N + 1
        return sums_SN

    def of(self, parts: Iterable[Rows]) -> NDArray[np.float64]:
        """The sums [S] of groups of equal rows; fractions of a row make a step on average."""
        total_S = np.zeros(len(self.terms))
        for part in parts:
            end = part.start + part.count
            together = part.shared * (1 - 1 / part.rows) if part.rows > 1 else 0.0
            every, keys = _pairs(end, None) - _pairs(part.start, None), end - together
            one: list[float] = [0.0, part.count, 1.0, part.projected, 0.0]
            for w in self.windows:
                one += (every, keys) if w is None else (_pairs(end, w) - _pairs(part.start, w),
                                                        end - max(part.start + 1 - w, 0))
            one += [0.0] * len(self._routers)
            if self._few:
                one += (part.count, every, keys) if part.count <= MOST_FEW else (0.0, 0.0, 0.0)
            total_S += part.rows * np.array(one)
        total_S[0], total_S[4] = 1.0, float(total_S[3] > 0)
        for i, router in enumerate(self._routers, len(_SCALARS) + 2 * len(self.windows)):
            total_S[i] = expected_distinct(router, float(total_S[1]))
        return total_S

    def multiples(self, part: Rows, rows_N: NDArray[Any]) -> NDArray[np.float64]:
        """The sums [S, N] of N steps of so many rows like `part` each: `of`, one by one."""
        sums_SN = np.multiply.outer(self.of([replace(part, rows=1.0, shared=0)]), rows_N)
        sums_SN[0], sums_SN[4] = 1.0, float(part.projected > 0)
        together_N = np.maximum(rows_N - 1.0, 0.0) * part.shared
        for i, window in enumerate(self.windows):
            if window is None:
                sums_SN[len(_SCALARS) + 2 * i + 1] -= together_N
        if self._few and part.count <= MOST_FEW:
            sums_SN[-1] -= together_N
        for i, router in enumerate(self._routers, len(_SCALARS) + 2 * len(self.windows)):
            sums_SN[i] = [expected_distinct(router, tokens) for tokens in sums_SN[1].tolist()]
        return sums_SN

    def sums(self, start: Counts, count: Counts, projected: int) -> StepSums:
        """The same as a value with names."""
        values = [int(v) for v in self.vector(start, count, projected)]
        seen = values[len(_SCALARS):]
        return StepSums(tokens=values[1], rows=values[2], projected=values[3],
                        windows={w: (seen[2 * i], seen[2 * i + 1]) for i, w in enumerate(self.windows)},
                        few=(seen[-3], seen[-2], seen[-1]) if self._few else (0, 0, 0))
