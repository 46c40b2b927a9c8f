"""Incremental text: never half a character, and the pieces joined are the whole."""

import codecs

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.frontend.detokenize import Detokenizer
from ridgeline.frontend.text import TextLayer
from ridgeline.frontend.tokenizer import Tokenizer

TRICKY = "Grüße 👩🏽‍🚀 你好 🏳️‍🌈"


def pieces(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    return [detokenizer.feed(token) for token in ids]


def test_no_half_character(default_text: TextLayer) -> None:
    """C-01: joined characters (ZWJ, skin tones, flags) arrive whole, with no U+FFFD on the way."""
    tokenizer = default_text.need_tokenizer()
    parts = pieces(tokenizer, tokenizer.encode(TRICKY))
    assert "".join(parts) == TRICKY
    assert not any("\ufffd" in part for part in parts)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 258), max_size=40), skip=st.booleans())
@example(ids=[0xF0, 0x9F], skip=True)
@example(ids=[0xED, 0xA0, 0x80, 65], skip=True)
def test_any_tokens(byte_level: Tokenizer, sentencepiece: Tokenizer, ids: list[int], skip: bool) -> None:
    """Random tokens are mostly broken UTF-8: the stream still equals the whole, decoded at once."""
    for tokenizer in (byte_level, sentencepiece):
        kept = [token for token in ids if not (skip and token in tokenizer.special_ids)]
        raw = b"".join(map(tokenizer.token_bytes, kept))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(raw)
        for _ in range(2):  # what tokens are is found by the first, and known to the second
            assert "".join(pieces(tokenizer, ids, skip_special=skip)) == text


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_valid_text_never_shows_a_replacement(byte_level: Tokenizer, text: str) -> None:
    """One token a byte: each character comes out with its last byte."""
    parts = pieces(byte_level, byte_level.encode_guarded(text, "\ufdd0"))
    assert "".join(parts) == text.replace("\ufdd0", "")
    assert "\ufffd" in text or not any("\ufffd" in part for part in parts)


def test_a_character_that_is_cut_off_does_not_show(byte_level: Tokenizer) -> None:
    """C-01: a text that reaches its limit inside a character ends before it."""
    assert pieces(byte_level, byte_level.encode("a😊")[:-1]) == ["a", "", "", ""]


@pytest.mark.parametrize("skip", [True, False])
def test_control_tokens(byte_level: Tokenizer, skip: bool) -> None:
    assert "".join(pieces(byte_level, byte_level.encode("a<|end|>b"), skip_special=skip)) == (
        "ab" if skip else "a<|end|>b"
    )
