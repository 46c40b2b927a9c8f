"""The texts of the runner rows on the host, prompt and output, for whoever drafts from them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.plan import RowStart

Tokens = NDArray[np.int32]


class Texts:
    """By row; of a text that a later start replaces nothing stays."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tokens, int]] = {}

    def start(self, start: RowStart) -> None:
        """A request takes the row, with what is known of it."""
        known = np.concatenate([start.prompt, start.output]).astype(np.int32)
        self._held[start.row] = known, len(known)

    def append(self, row: int, tokens: Sequence[int]) -> None:
        text, size = self._held[row]
        if size + len(tokens) > len(text):
            text = np.concatenate([text, np.empty(max(256, len(text)), np.int32)])
        text[size: size + len(tokens)] = tokens
        self._held[row] = text, size + len(tokens)

    def of(self, row: int) -> Tokens:
        """All tokens known, [length], a view."""
        text, size = self._held[row]
        return text[:size]
