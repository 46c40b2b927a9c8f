"""Tokens to text one by one, never half a character. Torch-free; knows no stop string and no request."""

import codecs

from ridgeline.frontend.tokenizer import Tokenizer

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of a growing token sequence.

    A character comes out with the token that completes it, and never when none does; bytes that cannot begin
    or continue a character become U+FFFD as soon as that is certain. The pieces joined equal the bytes joined
    and decoded at once, but for a character that is cut off at the end.
    """

    __slots__ = ("_bytes", "_decode", "_skipped")

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._decode = _utf8_decoder("replace").decode

    def feed(self, token: int) -> str:
        """The text that this token completes, often one word, sometimes nothing."""
        return "" if token in self._skipped else self._decode(self._bytes(token))

    def shows(self, token: int) -> bool:
        """False for a control token that leaves no trace in the text."""
        return token not in self._skipped
