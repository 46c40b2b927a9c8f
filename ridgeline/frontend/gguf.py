"""A tokenizer built from GGUF metadata: byte-level BPE ("gpt2") or SentencePiece's BPE ("llama").

Owns the pre-tokenizers by name. Reads a mapping of metadata; knows no file and no tensor.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ridgeline.base.errors import ConfigError
from ridgeline.base.table import Table
from ridgeline.frontend.spelling import SPACE_PIECE
from ridgeline.frontend.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{suffix}"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{suffix}"
)
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_TEKKEN = _CASED.replace("{suffix}", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
_GPT4O = _CASED.replace("{suffix}", _CONTRACTION + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL

# name -> (splits before the byte alphabet; whether GPT-2's own split follows)
_GPT2: tuple[tuple[str, ...], bool] = ((), True)
_DIGITS: tuple[tuple[str, ...], bool] = ((r"\p{N}",), True)
PRE_TOKENIZERS: Table[tuple[tuple[str, ...], bool]] = Table(
    "GGUF pre-tokenizer",
    {
        "gpt-2": _GPT2,
        "phi-2": _GPT2,
        "olmo": _GPT2,
        "mpt": _GPT2,
        "jais": _GPT2,
        "smollm": _DIGITS,
        "starcoder": _DIGITS,
        "refact": _DIGITS,
        "command-r": _DIGITS,
        "codeshell": _DIGITS,
        "llama-bpe": ((_LLAMA3,), False),
        "llama3": ((_LLAMA3,), False),
        "llama-v3": ((_LLAMA3,), False),
        "falcon3": ((_LLAMA3,), False),
        "dbrx": ((_LLAMA3,), False),
        "smaug-bpe": ((_LLAMA3,), False),
        "qwen2": ((_QWEN2,), False),
        "stablelm2": ((_QWEN2,), False),
        "deepseek-r1-qwen": ((_QWEN2,), False),
        "megrez": ((_QWEN2,), False),
        "tekken": ((_TEKKEN,), False),
        "gpt-4o": ((_GPT4O,), False),
        "llama4": ((_GPT4O,), False),
    },
)
# A word that is in the vocabulary needs no merges.
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"})
_COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen"})  # trained on NFC text


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file describes. ConfigError for a kind that we do not have."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise ConfigError("the GGUF file holds no tokenizer: give one with --tokenizer")
    pieces: list[str] = list(metadata["tokenizer.ggml.tokens"])
    types: Sequence[int] = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(pieces)
    if kind == "gpt2":
        backend, add_bos = _byte_level_bpe(metadata, pieces), False
    elif kind == "llama":
        backend, add_bos = _sentencepiece_bpe(metadata, pieces, types), True
    else:
        raise ConfigError(
            f"GGUF tokenizer {kind!r} is not supported (gpt2 and llama are): give a folder with a "
            "tokenizer.json as --tokenizer"
        )
    control = {CONTROL} if kind == "gpt2" else {CONTROL, UNKNOWN}
    special = [piece for piece, kind_of in zip(pieces, types, strict=True) if kind_of in control]
    backend.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    plain = [piece for piece, kind_of in zip(pieces, types, strict=True) if kind_of == USER_DEFINED]
    if plain:
        backend.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in plain])
    return Tokenizer(
        backend,
        bos=_named(metadata, pieces, "bos"),
        eos=_named(metadata, pieces, "eos"),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
    )


def _named(metadata: Mapping[str, Any], pieces: Sequence[str], name: str) -> str | None:
    index = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return pieces[index] if index is not None and 0 <= index < len(pieces) else None


def _byte_level_bpe(metadata: Mapping[str, Any], pieces: Sequence[str]) -> tokenizers.Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "gpt-2")
    splits, gpt2_split = PRE_TOKENIZERS[name]
    merges = [tuple(pair.split(" ", 1)) for pair in metadata.get("tokenizer.ggml.merges") or []]
    backend = tokenizers.Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)}, merges, ignore_merges=name in _WHOLE_WORDS_FIRST
        )
    )
    if name in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splits]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2_split)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, last]) if steps else last
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_bpe(
    metadata: Mapping[str, Any], pieces: Sequence[str], types: Sequence[int]
) -> tokenizers.Tokenizer:
    """BPE over SentencePiece's pieces: a merge is ranked by the score of the piece that it makes."""
    scores: Sequence[float] = metadata.get("tokenizer.ggml.scores") or [0.0] * len(pieces)
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    normal = {piece: i for i, piece in enumerate(pieces) if types[i] == NORMAL}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocabulary,
            _merges_by_score(normal, scores),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=pieces[unknown] if unknown < len(pieces) else None,
        )
    )
    add_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps = [normalizers.Prepend(SPACE_PIECE)] if add_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE_PIECE)])
    tail = [decoders.Strip(" ", 1, 0)] if add_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_PIECE, " "), decoders.ByteFallback(), decoders.Fuse(), *tail]
    )
    return backend


def _merges_by_score(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a piece from two pieces, best score first; equal scores keep the pieces' order.

    vocabulary: normal pieces only. A control token's score beats all, and it must never come from plain text.
    """
    found: list[tuple[float, int, int, int, str, str]] = []
    for piece, index in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[index], index, vocabulary[left], vocabulary[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]
