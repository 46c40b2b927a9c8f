"""Token ids and true bytes, for both kinds of vocabulary and the default model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.base.errors import ConfigError, RequestError
from ridgeline.frontend.gguf import tokenizer_from_gguf
from ridgeline.frontend.spelling import byte_level as spell_bytes
from ridgeline.frontend.spelling import spelling_of
from ridgeline.frontend.text import TextLayer
from ridgeline.frontend.tokenizer import Tokenizer
from tests.frontend.vocabularies import sentencepiece_metadata

HARD = [
    "Grüße 👩🏽‍🚀 你好 🏳️‍🌈",
    "",
    " ",
    "  two  spaces\n\n\ttab",
    "1234 5",
    "don't DON'T",
    "a\x00b",
    "é",
    "\u200d",
    "x" * 3000,
]


@pytest.mark.parametrize("text", HARD)
def test_default_model_round_trip(default_text: TextLayer, text: str) -> None:
    """Whatever is encoded comes back as it was: no character is lost, composed or moved."""
    tokenizer = default_text.need_tokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_default_model_known_ids(default_text: TextLayer) -> None:
    """Ids as the model's own tokenizer makes them: digits stand alone, words keep their space."""
    tokenizer = default_text.need_tokenizer()
    assert tokenizer.encode("Hello world 42") == [19556, 905, 216, 36, 34]
    assert tokenizer.encode("<|im_start|>user\n") == [1, 4093, 198]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_both_kinds_round_trip(byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    """Any Unicode text survives both kinds; SentencePiece's leading space goes again."""
    for tokenizer in (byte_level, sentencepiece):
        assert tokenizer.decode(tokenizer.encode(text)) == text or "<" in text or "▁" in text


def test_one_start_token(sentencepiece: Tokenizer) -> None:
    """C-06: the start token comes once, whether the text brings it or not."""
    assert sentencepiece.encode("ab")[0] == 1
    assert sentencepiece.encode("<s>ab").count(1) == 1
    assert sentencepiece.encode("ab", add_special=False).count(1) == 0
    assert sentencepiece.encode("<s><s>ab").count(1) == 2  # what a user spells out is kept


def test_control_token_is_never_merged_from_plain_pieces(sentencepiece: Tokenizer) -> None:
    """'<s' and '>' are pieces here: as plain text they must stay two, although '<s>' has the best score."""
    ids = sentencepiece.encode_guarded("<\ufdd0s>", "\ufdd0")
    assert 1 not in ids and b"".join(map(sentencepiece.token_bytes, ids)) == b" <s>"


def test_without_prefix_space_and_start_token() -> None:
    """add_space_prefix and add_bos_token of the file are followed."""
    metadata = sentencepiece_metadata() | {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = tokenizer_from_gguf(metadata)
    ids = tokenizer.encode("ab")
    assert [tokenizer.token_text(token) for token in ids] == ["ab"]
    assert tokenizer.decode(ids) == "ab" and tokenizer.decode(tokenizer.encode(" ab")) == " ab"


def test_byte_pieces(sentencepiece: Tokenizer) -> None:
    """A byte piece is its byte, not its spelling; a quarter of an emoji reads as bytes."""
    ids = sentencepiece.encode("😊", add_special=False)
    assert b"".join(map(sentencepiece.token_bytes, ids)) == b" " + "😊".encode()
    assert sentencepiece.token_bytes(ids[-1]) == b"\x8a"
    assert sentencepiece.token_text(ids[-1]) == "bytes:\\x8a"


def test_readable_tokens(default_text: TextLayer) -> None:
    """C-02: no vocabulary spelling (Ġ) in what users read."""
    tokenizer = default_text.need_tokenizer()
    assert [tokenizer.token_text(token) for token in tokenizer.encode("Hello world")] == ["Hello", " world"]
    assert tokenizer.token_text(2) == "<|im_end|>"


def test_padding_ids_have_no_bytes(byte_level: Tokenizer) -> None:
    """A model's vocabulary may be wider than its tokenizer's."""
    assert byte_level.token_bytes(10**6) == b"" and byte_level.token_bytes(-1) == b""


def test_special_tokens_may_be_shown(byte_level: Tokenizer) -> None:
    assert byte_level.decode([64, 257]) == byte_level.decode([64])
    assert byte_level.decode([64, 257], skip_special=False).endswith("<|end|>")


def test_lone_surrogate_is_refused(byte_level: Tokenizer) -> None:
    """JSON can carry half a surrogate pair; it is the user's mistake and no crash."""
    with pytest.raises(RequestError, match="surrogate"):
        byte_level.encode("a\ud83d")


def test_unknown_kinds_are_refused() -> None:
    """A pre-tokenizer that we would get wrong is refused by name."""
    base = {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.token_type": [1], "tokenizer.ggml.merges": []}
    with pytest.raises(ConfigError, match="qwen2"):
        tokenizer_from_gguf(base | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen-two"})
    with pytest.raises(ConfigError, match="bert"):
        tokenizer_from_gguf(base | {"tokenizer.ggml.model": "bert"})
    with pytest.raises(ConfigError, match="WordPiece"):
        spelling_of(b'{"type":"WordPiece"}')


@given(st.binary(max_size=40))
def test_byte_alphabet_is_a_bijection(data: bytes) -> None:
    """GPT-2's alphabet spells every byte string, and back."""
    from ridgeline.frontend.spelling import BYTE_OF_CHARACTER

    spelled = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    assert len(spelled) == 256
    assert spell_bytes("".join(spelled[byte] for byte in data)) == data
