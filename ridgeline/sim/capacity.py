"""The highest rate at which enough of what is offered meets its targets."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.sim.outcome import Outcome

_FIRST, _MOST = 1.0, 1e6  # requests a second: the first try, and what no engine needs to be asked
_LEAST = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """rate: requests/s, 0 where requests miss their targets even alone. outcome: at that rate, or at the
    lowest that was tried. tried: attainment by rate, in the order of the tries."""

    rate: float
    attainment: float
    outcome: Outcome
    tried: tuple[tuple[float, float], ...]


def find_capacity(at: Callable[[float], Outcome], attainment: float, *, tolerance: float = 0.02) -> Capacity:
    """Bisects, taking it that more load never serves more: doubles or halves from one request a second until
    the border lies between two rates, then halves that, in logarithms, down to `tolerance`."""
    tried: list[tuple[float, float]] = []

    def met(rate: float) -> Outcome | None:
        outcome = at(rate)
        tried.append((rate, outcome.attainment))
        return outcome if outcome.attainment >= attainment else None

    low, high, best = _FIRST, _FIRST, met(_FIRST)
    while best is None and low > _LEAST:
        low, high = low / 2, low
        best = met(low)
    if best is None:
        return Capacity(rate=0.0, attainment=attainment, outcome=at(low), tried=tuple(tried))
    while high == low and high < _MOST:
        found = met(high * 2)
        low, high, best = (low, high * 2, best) if found is None else (high * 2, high * 2, found)
    while high / low > 1 + tolerance:
        middle = (low * high) ** 0.5
        found = met(middle)
        low, best, high = (middle, found, high) if found is not None else (low, best, middle)
    return Capacity(rate=low, attainment=attainment, outcome=best, tried=tuple(tried))
