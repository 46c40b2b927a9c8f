"""A reference model of a case, written as a folder for our loader, and what it says."""

from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor

from tests.oracle.cases import CASES
from tests.oracle.ours import Ours
from tests.oracle.reference import VOCAB, reference_logits, reference_model


def text(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, VOCAB, length).tolist()


class Oracle:
    """One case."""

    def __init__(self, case: str, folder: Path) -> None:
        family, fields = CASES[case]
        self.model = reference_model(family, **fields)
        self.folder = folder
        self.model.save_pretrained(folder)
        self._wants: dict[int, Tensor] = {}

    @cached_property
    def ours(self) -> Ours:
        """Our model in float32."""
        return Ours(self.folder)

    def want(self, length: int) -> Tensor:
        """[length, vocabulary]: the reference's logits of `text(length)`."""
        if length not in self._wants:
            self._wants[length] = reference_logits(self.model, text(length))
            assert self._wants[length].std() > 0.3
        return self._wants[length]
