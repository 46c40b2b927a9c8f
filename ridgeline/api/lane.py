"""The short way of a choice whose text grows, and nothing else: from tokens to an event's bytes, with all
that stays the same looked up before.

Knows neither when it may be taken nor what stands in an event.
"""

from collections.abc import Sequence

from ridgeline.api.answers import to_json
from ridgeline.api.clocks import ChoiceTimes, PromptClock
from ridgeline.api.outlet import Outlet
from ridgeline.frontend.generation import Choice


class Lane:
    """choice: one that only the engine ends. frame: an event before and after its text."""

    __slots__ = ("_after", "_before", "_choice", "_clock", "_times", "_write")

    def __init__(
        self, choice: Choice, clock: PromptClock, times: ChoiceTimes, frame: tuple[bytes, bytes],
        outlet: Outlet,
    ) -> None:  # fmt: skip
        self._choice, self._clock, self._times = choice, clock, times
        self._before, self._after = frame
        self._write = outlet.write

    def take(self, tokens: Sequence[int], now_s: float) -> None:
        """Tokens that came at now_s, while the outlet is clear."""
        text = self._choice.more(tokens)
        self._clock.more(self._times, len(tokens), now_s)
        if text:
            self._write(self._before + to_json(text) + self._after)
