"""The estimate of a step from measured steps: a table says what the machine does, the roofline what the
context adds.

A floor says what no engine can beat; an estimate says what this one took when it was measured.
"""

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.price import Price
from ridgeline.ledger.profile import StepTable
from ridgeline.ledger.sums import StepShape


def _interpolate(x: float, xs: tuple[int, ...], ys: tuple[float, ...]) -> float:
    """Piecewise linear; past the last point the last slope goes on, before the first the first value
    holds."""
    if x > xs[-1]:
        return ys[-1] + (x - xs[-1]) * max(ys[-1] - ys[-2], 0.0) / (xs[-1] - xs[-2])
    return float(np.interp(x, xs, ys))


class Estimate:
    """estimate(step) -> expected seconds. Decodes and chunks take different paths through the weights, so
    their times add up; context beyond what the table was measured at is added at its floor."""

    def __init__(self, price: Price, table: StepTable) -> None:
        self._price = price
        self._table = table

    def __call__(self, step: StepShape) -> float:
        """Expected seconds of a step."""
        decodes = int(np.count_nonzero(step.count == 1))
        chunk_tokens = int(step.count.sum()) - decodes
        table = self._table
        seconds = _interpolate(decodes, table.rows, table.row_s) if decodes else 0.0
        if chunk_tokens:
            seconds += _interpolate(chunk_tokens, table.chunk, table.chunk_s)
        return seconds + max(self._price(step) - self._price(_Measured(step, table.context)), 0.0)


class _Measured:
    """The same step with the context that the table was measured at."""

    def __init__(self, step: StepShape, context: int) -> None:
        self.count = step.count
        self.start: NDArray[np.int64] = np.where(step.count == 1, context, 0)
        self.num_sampled = step.num_sampled
