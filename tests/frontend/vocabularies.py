"""Metadata of small vocabularies, as a GGUF file would hold it."""

from ridgeline.frontend.spelling import BYTE_OF_CHARACTER

SPIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
WORDS = ["▁", "▁a", "▁ab", "a", "b", "ab", "c", "<", ">", "s", "/", "<s", "s>", "é"]


def byte_level_metadata() -> dict[str, object]:
    """Every byte is a token (its id is not its value), then "ab" and two control tokens."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*BYTE_OF_CHARACTER, "ab", "<|end|>", "<|start|>"],
        "tokenizer.ggml.token_type": [1] * 257 + [3, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 258,
        "tokenizer.ggml.eos_token_id": 257,
    }


def sentencepiece_metadata() -> dict[str, object]:
    """A SentencePiece vocabulary with bytes, in which plain pieces could spell a control token."""
    pieces = SPIECES + WORDS
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0] * len(SPIECES) + [-float(i) for i in range(len(WORDS))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(WORDS),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
