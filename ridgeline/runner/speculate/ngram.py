"""Drafts by looking up: what followed the text's last few tokens when they stood in it before.

Saxena 2023 (prompt lookup decoding). Costs a few comparisons of arrays and no model.
"""

import numpy as np
from numpy.typing import NDArray

from ridgeline.runner.speculate.speculator import Proposal
from ridgeline.runner.speculate.texts import Texts
from ridgeline.schedule.plan import RowStart

LEAST = 3  # tokens that must match
LONGEST = 16  # beyond which a longer match says no more

Tokens = NDArray[np.int32]


def look_up(text: Tokens, most: int) -> Tokens:
    """`most` tokens or none: those after the longest match of the text's end, the latest of equal ones. A
    match that reaches into the end goes on in circles."""
    if len(text) <= LEAST:
        return text[:0]
    ends = np.flatnonzero(text[:-1] == text[-1])  # where the match's last token stands
    for back in range(1, min(LONGEST, len(text))):
        longer = ends[ends >= back]
        longer = longer[text[longer - back] == text[-1 - back]]
        if not len(longer):
            if back < LEAST:
                return text[:0]
            break
        ends = longer
    return np.resize(text[int(ends[-1]) + 1:], most)


class Ngram:
    """A speculator. What it finds after a step is compared with the next one's token for free."""

    def __init__(self, texts: Texts, most: int) -> None:
        self._texts = texts
        self._most = most
        self._found: dict[int, Tokens] = {}

    def look(self, row: int) -> int:
        found = self._found[row] = look_up(self._texts.of(row), self._most)
        return len(found)

    def expected(self, row: int) -> list[int]:
        found = self._found.get(row)
        return [] if found is None else found.tolist()

    def propose(self, rows: list[int], most: list[int]) -> list[Proposal]:
        return [Proposal(tokens=self.expected(row)[:num]) for row, num in zip(rows, most)]

    def start(self, start: RowStart) -> None:
        self._found.pop(start.row, None)
