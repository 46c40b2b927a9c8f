"""A tokenizer whose forty tokens are letters, for the fake model's vocabulary."""

from functools import cache

from ridgeline.frontend.gguf import tokenizer_from_gguf
from ridgeline.frontend.tokenizer import Tokenizer
from tests.helpers_schedule import VOCAB

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789!?.,"


@cache
def letters() -> Tokenizer:
    """Token i is LETTERS[i]."""
    assert len(LETTERS) == VOCAB
    return tokenizer_from_gguf({
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": list(LETTERS),
        "tokenizer.ggml.token_type": [1] * VOCAB, "tokenizer.ggml.merges": [],
    })  # fmt: skip
