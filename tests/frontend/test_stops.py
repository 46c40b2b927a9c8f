"""Stop strings against a slow twin that looks at the whole text after every character."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.frontend.stops import StopFinder

STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)
PIECES = st.lists(st.tuples(st.text("abc", max_size=5), st.booleans()), max_size=12)


def slow(pieces: list[tuple[str, bool]], stops: list[str], include: bool) -> tuple[str, str | None]:
    """The stop string that ends first in a piece that is armed; the longest of those that end there."""
    text = ""
    for piece, armed in pieces:
        for character in piece:
            text += character
            ending = sorted((stop for stop in stops if text.endswith(stop)), key=len)
            if armed and ending:
                return text if include else text[: -len(ending[-1])], ending[-1]
    return text, None


def fast(pieces: list[tuple[str, bool]], stops: list[str], include: bool) -> tuple[str, str | None]:
    finder = StopFinder(stops, include=include)
    out = ""
    for piece, armed in pieces:
        text, hit = finder.feed(piece, armed=armed)
        out += text
        if hit is not None:
            return out, hit
    return out + finder.finish(), None


@settings(max_examples=600, deadline=None)
@given(pieces=PIECES, stops=STOPS, include=st.booleans())
@example(pieces=[("aab", True)], stops=["ab", "aab"], include=False)
@example(pieces=[("ab", False), ("c", True)], stops=["abc", "b"], include=False)
def test_equals_the_slow_twin(pieces: list[tuple[str, bool]], stops: list[str], include: bool) -> None:
    assert fast(pieces, stops, include) == slow(pieces, stops, include)


@settings(max_examples=300, deadline=None)
@given(text=st.text("abc", max_size=20), stops=STOPS, cuts=st.lists(st.integers(0, 20), max_size=6))
def test_cutting_changes_nothing(text: str, stops: list[str], cuts: list[int]) -> None:
    """How a text falls into tokens must not show in where it stops."""
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [(text[a:b], True) for a, b in pairwise(borders)]
    assert fast(pieces, stops, False) == fast([(text, True)], stops, False)


@given(text=st.text("abc", max_size=20), stops=STOPS)
def test_holds_back_the_least(text: str, stops: list[str]) -> None:
    """Only an end that still begins a stop string is held back."""
    finder, out, seen = StopFinder(stops), "", ""
    for character in text:
        piece, hit = finder.feed(character)
        if hit is not None:
            return
        out += piece
        seen += character
        held = seen[len(out) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
        longer = [seen[i:] for i in range(len(out)) if any(s.startswith(seen[i:]) for s in stops)]
        assert not longer


def test_stop_in_the_first_piece() -> None:
    """C-03: nothing of it comes out."""
    assert StopFinder(["The"]).feed("The answer") == ("", "The")
