"""Stop strings in a text that grows piece by piece. Torch-free; knows no token."""

from collections.abc import Sequence


class StopFinder:
    """Holds back as little text as may still become a stop string.

    The stop string that ends first wins, and among those that end together the longest, so the outcome
    depends on the text alone and not on how it was cut into pieces. include: keep the stop string.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        assert all(stops), "the door refuses empty stop strings"
        self._stops = tuple(dict.fromkeys(stops))
        self._include = include
        self._inner = frozenset("".join(stop[:-1] for stop in self._stops))
        self._held = ""

    def feed(self, piece: str, *, armed: bool = True) -> tuple[str, str | None]:
        """(text that is now certain, the stop string hit or None). After a hit the finder is done.

        armed False: a stop string that ends inside this piece does not count (min_tokens).
        """
        if not self._stops:
            return piece, None
        text = self._held + piece
        if armed and (hit := self._first_hit(text, len(self._held))) is not None:
            start, stop = hit
            self._held = ""
            return text[: start + len(stop) if self._include else start], stop
        keep = self._may_continue(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def finish(self) -> str:
        """The text held back, when nothing more comes."""
        held, self._held = self._held, ""
        return held

    def _first_hit(self, text: str, old: int) -> tuple[int, str] | None:
        """(start, stop) of the hit that ends first beyond the `old` characters already looked at."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, old - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _may_continue(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        if not text or text[-1] not in self._inner:
            return 0
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
