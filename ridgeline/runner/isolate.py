"""Rows that break fail alone, and what lacks memory is halved: a step's rows run together, then in halves.

Knows nothing of what running means.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.schedule.plan import FAILED, UNDONE

Places = NDArray[np.int64]
_NO_MEMORY = "can't allocate memory"  # torch's own words on a CPU, in a plain RuntimeError


@dataclass(slots=True, kw_only=True)
class Broken:
    """What became of a step's rows that did not come through, by place in the plan.

    errors: why. undone: those of them that lacked memory even alone. short: the step lacked some as a whole.
    """

    errors: dict[int, str] = field(default_factory=dict)
    undone: set[int] = field(default_factory=set)
    short: bool = False

    def codes(self, num_rows: int) -> NDArray[np.uint8]:
        """As `StepResult.failed`."""
        failed = np.zeros(num_rows, np.uint8)
        failed[list(self.errors)] = FAILED
        failed[list(self.undone)] = UNDONE
        return failed


def isolate(places: Places, run: Callable[[Places], None], broken: Broken) -> None:
    """Run all places together; when that raises, halve until the rows that cannot run stand alone."""
    if not len(places):
        return
    try:
        run(places)
        return
    except Exception as error:  # whatever a row breaks on, the others must go on
        short, reason = lacks_memory(error), as_text(error)  # the error itself holds on to what broke
    broken.short |= short
    if len(places) == 1:
        place = int(places[0])
        broken.errors[place] = reason
        if short:
            broken.undone.add(place)
        return
    middle = len(places) // 2
    isolate(places[:middle], run, broken)
    isolate(places[middle:], run, broken)


def lacks_memory(error: Exception) -> bool:
    """Whether an allocation failed, on a GPU, in torch on a CPU, or in Python."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or _NO_MEMORY in str(error)


def as_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
