"""Thoughts before an answer: read alike in any pieces, kept to a budget, followed by the structure asked."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.frontend import structure
from ridgeline.frontend.tools.thinking import Tags, ThoughtReader, after_thought, is_open, thinks
from ridgeline.runner.grammar import Grammars

PIECES = [b"", b"a", b"b", b"\n", b"1", b"<think>", b"</think>", b"<end>"]
OPEN, CLOSE, END = 5, 6, 7


class Letters:
    marker_ids = frozenset((OPEN, CLOSE, END))

    def token_bytes(self, token: int) -> bytes:
        return PIECES[token]

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return [PIECES.index(letter.encode()) for letter in text]


def read(pieces: list[str], *, inside: bool) -> tuple[str, str]:
    reader = ThoughtReader(inside=inside)
    events = [event for piece in pieces for event in reader.feed(piece)] + list(reader.finish())
    return "".join(event.reasoning for event in events), "".join(event.text for event in events)


@pytest.mark.parametrize("text, inside, thought, answer", [
    ("<think>\nso a < b\n</think>\n\nYes.", False, "so a < b", "Yes."),
    ("so</think>Yes. </think>", True, "so", "Yes. </think>"),
    ("  \nNo thought <think>here</think>", False, "", "  \nNo thought <think>here</think>"),
    ("<think></think> x", False, "", "x"), ("<think>never ends </thin", False, "never ends </thin", ""),
    ("<thinking>", False, "", "<thinking>"), ("<thi", False, "", "<thi"), ("", True, "", ""),
])  # fmt: skip
def test_thought_and_answer(text: str, inside: bool, thought: str, answer: str) -> None:
    for size in (1, 2, 5, 100):
        pieces = [text[at: at + size] for at in range(0, len(text), size)]
        assert read(pieces, inside=inside) == (thought, answer)


@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.sampled_from(["<think>", "</think>", "<", "/th", "ink>", " ", "\n"]), max_size=9),
       cuts=st.lists(st.integers(0, 40), max_size=6), inside=st.booleans())
def test_any_text_is_read_alike(text: list[str], cuts: list[int], inside: bool) -> None:
    whole = "".join(text)
    places = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    assert read([whole[a:b] for a, b in pairwise(places)], inside=inside) == read([whole], inside=inside)


def allowed(grammar: str, tokens: list[int]) -> set[int]:
    """What may follow these tokens; all of them must be allowed."""
    followed = Grammars(Letters, vocab_size=len(PIECES), eos_token_ids=(END,), threads=1)
    matcher = followed.compile(grammar).deep_copy()
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    bits = matcher.compute_bitmask()
    return {token for token in range(len(PIECES)) if bits[token // 8] >> token % 8 & 1}


TAGS = Tags(open_id=OPEN, close_id=CLOSE)


def test_a_thought_that_reaches_its_budget_is_closed() -> None:
    free = after_thought(None, TAGS, inside=True, budget=2)
    assert allowed(free, []) >= {1, 2, CLOSE} and allowed(free, [1]) >= {1, CLOSE}
    assert allowed(free, [1, 2]) == {CLOSE} and allowed(free, [1, 2, CLOSE]) >= {1, 2, 3, END}
    assert allowed(after_thought(None, TAGS, inside=True, budget=0), []) == {CLOSE}


def test_the_structure_holds_behind_the_thought_and_without_one() -> None:
    one = structure.regex("1+")
    for grammar in (one, structure.choice(["11", "1"])):
        inside = after_thought(grammar, TAGS, inside=True, budget=None)
        assert allowed(inside, [1, 1, 1, CLOSE]) == {3, 4} and END in allowed(inside, [CLOSE, 3, 4])
        maybe = after_thought(grammar, TAGS, inside=False, budget=None)
        assert allowed(maybe, []) == {4, OPEN} and allowed(maybe, [OPEN, 2, CLOSE]) == {3, 4}


def test_what_templates_say() -> None:
    assert thinks({"default": "{{ '</think>' }}"}) and not thinks({"default": "{{ messages }}"})
    assert is_open("<|im_start|>assistant\n<think>\n") and not is_open("<think>\n\n</think>\n\n")
