"""Pre-tokenizers by GGUF name, against what each model's own tokenizer does with telling texts."""

import pytest

from ridgeline.frontend.gguf import tokenizer_from_gguf
from ridgeline.frontend.spelling import BYTE_OF_CHARACTER

TEXT = "I'LL pay $1234.50,\r\n\n  ok?!\tNaïve CamelCase don't"


def words(name: str) -> list[str]:
    """How a text is cut: every piece of it is a token and every merge allowed, so that only cuts stop one."""
    spell = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    spelled = "".join(spell[byte] for byte in TEXT.encode())
    cuts = range(len(spelled) + 1)
    pieces = dict.fromkeys([*spell.values(), *(spelled[i:j] for i in cuts for j in cuts if i < j)])
    merges = dict.fromkeys(f"{piece[:k]} {piece[k:]}" for piece in pieces for k in range(1, len(piece)))
    tokenizer = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": name,
            "tokenizer.ggml.tokens": list(pieces),
            "tokenizer.ggml.token_type": [1] * len(pieces),
            "tokenizer.ggml.merges": list(merges),
        }
    )
    return [tokenizer.token_text(token) for token in tokenizer.encode(TEXT)]


EXPECTED = {
    "gpt-2": "I|'|LL| pay| $|1234|.|50|,|\r\n\n | ok|?!|\t|Naïve| CamelCase| don|'t",
    "smollm": "I|'|LL| pay| $|1|2|3|4|.|5|0|,|\r\n\n | ok|?!|\t|Naïve| CamelCase| don|'t",
    "llama-bpe": "I|'LL| pay| $|123|4|.|50|,\r\n\n| | ok|?!|\tNaïve| CamelCase| don|'t",
    "qwen2": "I|'LL| pay| $|1|2|3|4|.|5|0|,\r\n\n| | ok|?!|\tNaïve| CamelCase| don|'t",
    "tekken": "I|'LL| pay| $|1|2|3|4|.|5|0|,\r\n\n| | ok|?!|\tNaïve| Camel|Case| don|'t",
    "gpt-4o": "I'LL| pay| $|123|4|.|50|,\r\n\n| | ok|?!|\tNaïve| Camel|Case| don't",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_cuts(name: str) -> None:
    """Digits, contractions, line ends and case are where these differ."""
    assert "|".join(words(name)) == EXPECTED[name]
