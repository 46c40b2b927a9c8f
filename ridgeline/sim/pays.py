"""From which load on one way to serve gives more than another."""

from collections.abc import Callable

from ridgeline.sim.outcome import Outcome

_RATES = 9  # of the loads that are looked at, before the border between two of them is halved
_MARGIN = 1.01  # goodput, of the other's, that is more than chance


def pays_from(one: Callable[[float], Outcome], other: Callable[[float], Outcome], low: float, high: float, *,
              tolerance: float = 0.05) -> float | None:
    """The rate, requests/s, from which `one` has more goodput than `other` at all that are looked at, up to
    `high`; None where it has not at `high`."""
    def better(rate: float) -> bool:
        return one(rate).goodput > _MARGIN * other(rate).goodput

    step = (high / low) ** (1 / (_RATES - 1))
    best = high
    if not better(high):
        return None
    while best > low and better(best / step):
        best /= step
    worse = best / step
    if worse < low:
        return best
    while best / worse > 1 + tolerance:
        middle = (best * worse) ** 0.5
        best, worse = (middle, worse) if better(middle) else (best, middle)
    return best
