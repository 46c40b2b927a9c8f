"""A progress bar on stderr for work of more than two seconds, and a line for work that cannot be counted."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from ridgeline.base.clock import Clock, WallClock

_QUIET_S, _EVERY_S, _EVERY_LINE_S = 2.0, 0.2, 10.0
_WIDTH = 24


class Progress:
    """Counts units of work. A terminal has its bar redrawn in place, a log gets a line now and then."""

    def __init__(self, what: str, total: int, *, shown: bool = True, clock: Clock | None = None) -> None:
        self._what = what
        self._total = max(total, 1)
        self._shown = shown
        self._clock = clock or WallClock()
        self._done = 0
        self._start_s = self._clock.now()
        self._next_s = self._start_s + _QUIET_S
        self._drawn = False

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._drawn and sys.stderr.isatty():
            sys.stderr.write("\n")

    def advance(self, count: int) -> None:
        """Some more is done."""
        self._done += count
        now_s = self._clock.now()
        if not self._shown or (now_s < self._next_s and not (self._drawn and self._done >= self._total)):
            return
        terminal = sys.stderr.isatty()
        self._next_s = now_s + (_EVERY_S if terminal else _EVERY_LINE_S)
        self._drawn = True
        share = min(self._done / self._total, 1.0)
        left_s = (now_s - self._start_s) * (1 - share) / max(share, 1e-9)
        bar = "#" * int(share * _WIDTH)
        text = f"{self._what} [{bar:{_WIDTH}}] {share:4.0%}, {left_s:.0f} s left"
        sys.stderr.write(f"\r{text} " if terminal else f"{text}\n")
        sys.stderr.flush()


@contextmanager
def told_when_slow(what: str, *, shown: bool = True) -> Iterator[None]:
    """Says what goes on, in one line, when the block takes long."""
    timer = threading.Timer(_QUIET_S, lambda: print(f"{what} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    if shown:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
