"""How far a long simulation is, on stderr."""

import sys
import time


class Progress:
    """A line on stderr once a run takes longer than two seconds."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._begun = self._last = time.monotonic()

    def __call__(self, begun: int, now: float) -> None:
        wall = time.monotonic()
        if wall - self._begun > 2 and wall - self._last > 1:
            self._last = wall
            print(f"\r{self._what}: {begun} of {self._total} requests, {now:.0f} s simulated", end="",
                  file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._last > self._begun:
            print(file=sys.stderr)
