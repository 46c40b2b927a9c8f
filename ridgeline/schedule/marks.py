"""Marks: where chunks of a prompt are cut, so that the recurrent state of that position can be kept.

Which positions are marks is the KV manager's business; a row that has come to one tells it when it goes on.
Models without recurrent states have none, and rows then keep a mark beyond any position.
"""

import numpy as np
from numpy.typing import NDArray

from ridgeline.kv.interface import Manager
from ridgeline.schedule.rows import Rows

Long = NDArray[np.int64]


class Marks:
    """The marks of the rows that run."""

    def __init__(self, rows: Rows, manager: Manager, *, any_state: bool) -> None:
        self._any_state = any_state
        self._rows = rows
        self._manager = manager
        self._due: dict[int, int] = {}  # request -> the mark at which it stands

    def cut(self, pending: Long) -> Long:
        """Tokens by row [num_rows], none past the row's next mark."""
        if not self._any_state:
            return pending
        rows = self._rows
        for row in (rows.mark == rows.scheduled).nonzero()[0].tolist():
            number, mark = int(rows.number[row]), int(rows.mark[row])
            self._due[number] = mark
            rows.mark[row] = self._manager.next_mark(number, mark)
        return np.minimum(pending, rows.mark - rows.scheduled)

    def first(self, number: int, computed: int) -> int:
        """Tokens from `computed` on to the first mark of a sequence that was just opened."""
        return self._manager.next_mark(number, computed) - computed

    def leave(self, counts: Long) -> None:
        """The rows that go on from a mark with this step leave a snapshot there. Once the step has its pages:
        a snapshot takes what is free and nobody's place."""
        rows = self._rows
        for number, mark in list(self._due.items()):
            row = rows.row_of.get(number)
            if row is None or counts[row]:
                del self._due[number]
            if row is not None and counts[row]:
                self._manager.snapshot(number, mark, rows.tokens[row])
