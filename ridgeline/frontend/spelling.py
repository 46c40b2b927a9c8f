"""How a vocabulary spells bytes: byte-level BPE (GPT-2's printable alphabet) or SentencePiece pieces.

Owns the way from a token's spelling to the true bytes that it adds to a text. Knows no file and no ids.
"""

import json
from collections.abc import Callable
from typing import Any

from ridgeline.base.errors import ConfigError

Spelling = Callable[[str], bytes]

SPACE_PIECE = "▁"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's character for each byte: printable Latin-1 is itself, the other 68 are moved up to 256 + n."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(256 + rank): byte for rank, byte in enumerate(others)})
    return alphabet


BYTE_OF_CHARACTER = _byte_alphabet()


def byte_level(piece: str) -> bytes:
    """'ĠcafÃ©' as the bytes of ' café'. A spelling with a character outside the alphabet is plain text."""
    try:
        return bytes(map(BYTE_OF_CHARACTER.__getitem__, piece))
    except KeyError:
        return piece.encode()


def sentencepiece(piece: str) -> bytes:
    """'▁caf' as b' caf', and a byte piece '<0xC3>' as that byte."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes((int(piece[3:5], 16),))
        except ValueError:
            pass
    return piece.replace(SPACE_PIECE, " ").encode()


def spelling_of(decoder_state: bytes | None) -> tuple[Spelling, bool]:
    """(spelling, drop one space at the start of a whole text) from a tokenizer.json's decoder, as JSON bytes.

    Raises ConfigError for a decoder whose tokens have no bytes of their own (WordPiece, CTC), which cannot be
    streamed exactly.
    """
    state: dict[str, Any] = json.loads(decoder_state) if decoder_state else {"type": "none"}
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return byte_level, False
    if "Metaspace" in kinds:
        step = steps[kinds.index("Metaspace")]
        return sentencepiece, step.get("prepend_scheme", "always") != "never"
    replaces = [step for step in steps if step["type"] == "Replace"]
    if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and any(
        step["pattern"] == {"String": SPACE_PIECE} and step["content"] == " " for step in replaces
    ):
        strips = [step for step in steps if step["type"] == "Strip"]
        return sentencepiece, any(step["content"] == " " and step["start"] >= 1 for step in strips)
    raise ConfigError(
        f"the tokenizer's decoder ({' + '.join(kinds)}) is not one we can stream; byte-level BPE and "
        "SentencePiece are: give another one with --tokenizer"
    )
