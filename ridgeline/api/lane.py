"""The short way of choices whose texts grow, and nothing else: from tokens to an event's bytes, with all that
stays the same looked up before, and all that nobody waits for left until the bytes of others are out too.

A token in a server of hundreds of streams finds its objects in no cache: what counts is how few are touched.
Knows neither when it may be taken nor what stands in an event.
"""

from collections.abc import Callable, Sequence

from ridgeline.account.clocks import ChoiceTimes, PromptClock
from ridgeline.api.answers import encode
from ridgeline.api.outlet import Outlet
from ridgeline.frontend.detokenize import Detokenizer
from ridgeline.frontend.generation import Choice


class Lane:
    """choice: one that only the engine ends, and its `plain`. frame: an event before and after its text."""

    __slots__ = ("_after", "_before", "_choice", "_clock", "_outlet", "_text_of", "_times")

    def __init__(
        self, choice: Choice, plain: Detokenizer, clock: PromptClock, times: ChoiceTimes,
        frame: tuple[bytes, bytes], outlet: Outlet,
    ) -> None:  # fmt: skip
        self._choice, self._clock, self._times = choice, clock, times
        self._before, self._after = frame
        self._text_of, self._outlet = plain.feed_all, outlet

    def take(self, tokens: Sequence[int]) -> str:
        """Write tokens while the outlet is clear: their text, with which they are to be counted."""
        text = self._text_of(tokens)
        if text:
            part = self._before + encode(text) + self._after
            if not self._outlet.sooner(part):
                self._outlet.write(part)
        return text

    def count(self, tokens: Sequence[int], text: str, now_s: float) -> None:
        """Tokens that came at now_s and were taken."""
        self._choice.note(tokens, text)
        self._clock.more(self._times, len(tokens), now_s)


class Lanes:
    """Those of a prompt's choices, by which its tokens go past their reader (frontend.inbox.AtOnce).

    first: writes tokens of a choice that has no lane yet, and gives it one if it may have one.
    """

    __slots__ = ("_first", "_lanes", "_outlet", "_owed")

    def __init__(self, outlet: Outlet, first: Callable[[int, Sequence[int], float], Lane | None]) -> None:
        self._outlet, self._first = outlet, first
        self._lanes: dict[int, Lane] = {}
        self._owed: list[tuple[Lane, Sequence[int], str, float]] = []

    def take(self, choice: int, tokens: Sequence[int], now_s: float) -> bool:
        """Tokens of a choice; False: the outlet is not clear."""
        if not self._outlet.clear:
            return False
        if (lane := self._lanes.get(choice)) is not None:
            self._owed.append((lane, tokens, lane.take(tokens), now_s))
        elif (lane := self._first(choice, tokens, now_s)) is not None:
            self._lanes[choice] = lane
        return True

    def settle(self) -> None:
        """Before anybody else reads a choice or its times."""
        owed, self._owed = self._owed, []
        for lane, tokens, text, now_s in owed:
            lane.count(tokens, text, now_s)
