"""Tokens to text one by one, never half a character. Torch-free; knows no stop string and no request."""

import codecs
from collections.abc import Sequence

from ridgeline.frontend.tokenizer import Tokenizer

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of a growing token sequence.

    A character comes out with the token that completes it, and never when none does; bytes that cannot begin
    or continue a character become U+FFFD as soon as that is certain. The pieces joined equal the bytes joined
    and decoded at once, but for a character that is cut off at the end.
    """

    __slots__ = ("_bytes", "_decode", "_is_whole", "_pending", "_skipped", "_texts")

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._texts = tokenizer.whole_texts(skip_special)
        self._is_whole = True  # no character has begun
        decoder = _utf8_decoder("replace")
        self._decode, self._pending = decoder.decode, decoder.getstate

    def feed(self, token: int) -> str:
        """The text that this token completes, often one word, sometimes nothing."""
        if self._is_whole and (known := self._texts.get(token)) is not None:
            return known
        text = "" if token in self._skipped else self._decode(self._bytes(token))
        was_whole, self._is_whole = self._is_whole, not self._pending()[0]
        if was_whole and self._is_whole:
            self._texts[token] = text
        return text

    def feed_all(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        if len(tokens) == 1 and self._is_whole and (known := self._texts.get(tokens[0])) is not None:
            return known  # as `feed` has it: most tokens come alone
        return "".join(map(self.feed, tokens))

    def shows(self, token: int) -> bool:
        """False for a control token that leaves no trace in the text."""
        return token not in self._skipped
