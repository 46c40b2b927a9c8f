"""Measures a length distribution of ridgeline/workload/measured from a public trace, and prints its TOML.

    python -m docs.lengths TRACE "SOURCE" "LICENCE" > ridgeline/workload/measured/NAME.toml

Quantiles only: no row of the trace is kept.
"""

import sys
import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from ridgeline.workload.measured import Measured
from ridgeline.workload.traces.table import open_trace

PROMPT_POINTS = (0, 0.1, 0.5, 1, 2, 3, 5, 7.5, *range(10, 100, 5), 96, 97, 98, 98.5, 99, 99.25, 99.5, 99.75,
                 99.9, 100)
OUTPUT_POINTS = (0, 1, 2.5, *range(5, 95, 5), 92.5, 95, 97, 98, 99, 99.5, 100)


def measure(lengths: NDArray[Any], prompt_points: NDArray[np.float64], output_points: NDArray[np.float64],
            num_parts: int = 10) -> Measured:
    """The quantiles of (rows, 2) prompts and outputs."""
    ordered = lengths[np.argsort(lengths[:, 0], kind="stable")]
    parts = np.array_split(ordered[:, 1], num_parts)
    return Measured(num_rows=len(lengths), prompt_points=prompt_points, output_points=output_points,
                    prompts=np.asarray(np.quantile(lengths[:, 0], prompt_points / 100), dtype=np.float64),
                    outputs=np.stack([np.quantile(part, output_points / 100) for part in parts]))


def toml(trace: str, source: str, licence: str) -> str:
    requests = open_trace(trace, default_rng(0)).requests
    lengths = np.array([(request.num_prompt, request.num_output) for request in requests])
    found = measure(lengths, np.array(PROMPT_POINTS), np.array(OUTPUT_POINTS))
    about = f"Quantiles of tokens, measured by docs/lengths.py on {source}. Licence of the trace: {licence}."
    rows = ",\n".join(f"  {_numbers(row)}" for row in found.outputs)
    return "\n".join([
        *(f"# {line}" for line in textwrap.wrap(about, 106)), "", f"num_rows = {found.num_rows}",
        f"prompt_points = {_numbers(PROMPT_POINTS)}", f"prompts = {_numbers(found.prompts)}",
        f"output_points = {_numbers(OUTPUT_POINTS)}", f"outputs = [\n{rows},\n]"])


def _numbers(values: Iterable[float]) -> str:
    text = "[" + ", ".join(f"{value:.4g}" if value < 1000 else f"{value:.0f}" for value in values) + "]"
    return "\n    ".join(textwrap.wrap(text, 104))


if __name__ == "__main__":
    print(toml(*sys.argv[1:]))
