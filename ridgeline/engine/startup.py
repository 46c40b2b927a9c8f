"""The record of a start: the seconds of each phase, and what was chosen and why, for `doctor` and "info"."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ridgeline.base.clock import Clock

T = TypeVar("T", bound=int | float | str | bool)
_log = logging.getLogger("ridgeline.engine")


class Startup:
    """Filled in while an engine is assembled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.phases_s: dict[str, float] = {}
        self.choices: dict[str, tuple[int | float | str | bool, str]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times a part of the start."""
        begun = self._clock.now()
        try:
            yield
        finally:
            self.phases_s[name] = self._clock.now() - begun

    def choose(self, name: str, value: T, why: str) -> T:
        """Note and log a choice, once; returns the value."""
        assert name not in self.choices, "a choice is made once"
        self.choices[name] = (value, why)
        _log.info("%s = %s (%s)", name, value, why)
        return value

    def as_dict(self) -> dict[str, Any]:
        """{"phases_s": {phase: seconds}, "choices": {name: {"value", "why"}}}."""
        choices = {name: {"value": value, "why": why} for name, (value, why) in self.choices.items()}
        return {"phases_s": dict(self.phases_s), "choices": choices}
