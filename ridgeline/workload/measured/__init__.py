"""Length distributions measured from public traces, one TOML file each: quantiles, never the rows.

A file holds the quantiles of prompts, and of the outputs in each tenth of the prompts by length, so that long
prompts bring the outputs that they had. `docs/lengths.py` writes these files.
"""

import tomllib
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

MEASURED = ("arxiv", "azure-code", "azure-conv", "sharegpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Quantiles in tokens. points: where they stand, in percent, from 0 to 100; outputs: (tenths, points)."""

    num_rows: int
    prompt_points: NDArray[np.float64]
    prompts: NDArray[np.float64]
    output_points: NDArray[np.float64]
    outputs: NDArray[np.float64]

    def draw(self, random: Generator, num: int) -> NDArray[np.float64]:
        """(num, 2) tokens of prompts and outputs, between the quantiles on straight lines."""
        percent = random.random((num, 2)) * 100
        prompts = np.interp(percent[:, 0], self.prompt_points, self.prompts)
        parts = len(self.outputs)
        part = (percent[:, 0] * parts / 100).astype(int)
        outputs = np.empty(num)
        for i in range(parts):
            outputs[part == i] = np.interp(percent[part == i, 1], self.output_points, self.outputs[i])
        return np.stack([prompts, outputs], axis=1)


def load_measured(name: str) -> Measured:
    """One of MEASURED."""
    text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    arrays = {key: np.array(values[key], dtype=np.float64)
              for key in ("prompt_points", "prompts", "output_points", "outputs")}
    return Measured(num_rows=values["num_rows"], **arrays)
