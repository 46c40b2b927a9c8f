"""Time as a thing that is passed in: nothing outside this file reads a clock to decide anything."""

import os
import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """A source of seconds that never goes back."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that moves only when told: simulation and tests."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def advance_to(self, when_s: float) -> None:
        assert when_s >= self._now_s, "time goes forward only"
        self._now_s = when_s


def since_exec_s() -> float:
    """Seconds since this process began, as Linux counts them."""
    began_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / os.sysconf("SC_CLK_TCK")
