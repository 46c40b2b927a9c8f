"""A prompt's final hidden states as one vector, for the rows that asked: their mean, or the last.

Legend: C tokens of a chunk, W tokens that are wanted, R rows of the plan, H hidden.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.nn.build import Model
from ridgeline.runner.wanted import Wanted
from ridgeline.schedule.plan import RowStart, StepPlan


class Pooler:
    """Sums over chunks of prompts, by runner row, in float64: how a prompt is cut adds no error."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._asked: dict[int, RowStart] = {}
        self._sums: dict[int, tuple[int, Tensor, Tensor]] = {}  # the newest chunk's start; before and with it

    def start(self, start: RowStart) -> None:
        """A request takes its row."""
        self._asked.pop(start.row, None)
        if start.params.pool is not None:
            self._asked[start.row] = start

    def concerns(self, plan: StepPlan) -> bool:
        """True when one of the rows asked."""
        return bool(self._asked) and not self._asked.keys().isdisjoint(plan.row.tolist())

    def rows(self, plan: StepPlan) -> NDArray[np.bool_]:
        """[R] whose tokens are all needed."""
        if not self._asked:
            return np.zeros(plan.num_rows, np.bool_)
        return np.isin(plan.row, list(self._asked))

    def of(self, plan: StepPlan, x_WH: Tensor, wanted: Wanted) -> Iterator[tuple[int, Tensor]]:
        """(place in the plan, float32 vector [H]) of prompts that this step's hidden states make whole."""
        if not self._asked:
            return
        for place, row in enumerate(plan.row.tolist()):
            if row in self._asked:
                first = int(plan.start[place])
                hidden_CH = self._model.final(x_WH[wanted.span(place)])
                if (vector_H := self._take(self._asked[row], first, hidden_CH)) is not None:
                    yield place, vector_H.float()

    def _take(self, asked: RowStart, first: int, hidden_CH: Tensor) -> Tensor | None:
        """The vector, once the prompt is whole. A step that is run again gives the same chunk again."""
        row, length = asked.row, len(asked.prompt)
        whole = first + len(hidden_CH) >= length
        if asked.params.pool == "last":
            return hidden_CH[-1] if whole else None
        at, before_H, with_H = self._sums.get(row, (0, torch.zeros(()), torch.zeros(())))
        base_H = torch.zeros(()) if first == 0 else before_H if first == at else with_H
        total_H = base_H + hidden_CH.sum(0, dtype=torch.float64)
        self._sums[row] = first, base_H, total_H
        return total_H / length if whole else None
