"""When requests arrive that bring no times of their own.

A renewal process: gaps are independent, with mean 1 / rate. Poisson has exponential gaps; gamma:SHAPE has
gamma gaps, whose coefficient of variation is SHAPE**-0.5, so that a shape below 1 comes in bursts.
"""

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from ridgeline.base.errors import ConfigError
from ridgeline.workload.source import numbers

FORMS = ("poisson", "gamma:SHAPE", "trace", "closed:N")
_BLOCK = 1024  # gaps drawn at a time


def num_at_a_time(arrival: str) -> int | None:
    """N of "closed:N", None for another arrival."""
    kind, _, setting = arrival.partition(":")
    if kind != "closed":
        return None
    (number,) = numbers(setting, "arrival closed", "N")
    if number != int(number):
        raise ConfigError(f"arrival {arrival!r}: so many requests at a time must be a whole number")
    return int(number)


def check_arrival(arrival: str) -> None:
    """ConfigError for an unknown arrival."""
    if arrival.partition(":")[0] not in {form.partition(":")[0] for form in FORMS}:
        raise ConfigError(f"no arrival named {arrival!r}: known are {', '.join(FORMS)}")


def arrival_times(arrival: str, rate: float, random: Generator) -> Iterator[float]:
    """Seconds from the start, without end. A generator in the same state gives the same times at every rate
    but for the factor. ConfigError for an unknown arrival."""
    kind, _, setting = arrival.partition(":")
    if arrival == "poisson":
        shape = 1.0
    elif kind == "gamma":
        (shape,) = numbers(setting, "arrival gamma", "SHAPE")
    else:
        raise ConfigError(f"no arrival named {arrival!r}: known are {', '.join(FORMS)}")
    return _times(shape, rate, random)


def _times(shape: float, rate: float, random: Generator) -> Iterator[float]:
    now = 0.0
    while True:
        for gap in (np.asarray(random.standard_gamma(shape, _BLOCK)) / (shape * rate)).tolist():
            now += gap
            yield now
