"""Lengths of prompts and outputs by name: measured distributions and formulas. Draws without end.

A formula's prompts and outputs are independent; a measured distribution keeps how they go together.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ridgeline.base.errors import ConfigError
from ridgeline.base.table import Table
from ridgeline.workload.measured import MEASURED, load_measured
from ridgeline.workload.offered import Offered
from ridgeline.workload.source import MOST_TOKENS, Source, numbers

Pairs = NDArray[np.float64]  # (requests, 2): tokens of the prompt and of the output
Draw = Callable[[Generator, int], Pairs]
_BLOCK = 1024  # requests drawn at a time


def draw_lengths(name: str, random: Generator) -> Source:
    """Requests without times whose lengths follow `name`; ConfigError names what is known."""
    kind, _, setting = name.partition(":")
    return Source(requests=_LENGTHS[kind](setting, random), timed=False, about=f"lengths {name}")


def uniform_lengths(name: str) -> bool:
    """Whether requests are about equally long, which hides what real traffic does to a scheduler."""
    return name.partition(":")[0] in ("uniform", "fixed", "prefix")


def _rows(draw: Draw, random: Generator) -> Iterator[Offered]:
    blocks = (draw(random, _BLOCK) for _ in iter(int, 1))
    rows = chain.from_iterable(np.clip(np.floor(block + 0.5), 1, MOST_TOKENS).astype(int).tolist()
                               for block in blocks)
    for row, (prompt, output) in enumerate(rows, start=1):
        yield Offered(arrived_s=0.0, num_prompt=prompt, num_output=output, row=row)


def _measured(name: str, setting: str, random: Generator) -> Iterator[Offered]:
    if setting:
        raise ConfigError(f"lengths {name}:{setting}: {name} takes no setting")
    return _rows(load_measured(name).draw, random)


def _lognormal(setting: str, random: Generator) -> Iterator[Offered]:
    """The means are of the tokens themselves; a sigma is the deviation of their natural logarithm."""
    found = np.array(numbers(setting, "lengths lognormal", "PROMPT_MEAN,SIGMA,OUTPUT_MEAN,SIGMA"))
    mean, sigma = found[::2], found[1::2]
    middle = np.log(mean) - sigma**2 / 2
    return _rows(lambda generator, n: np.exp(middle + sigma * generator.standard_normal((n, 2))), random)


def _uniform(setting: str, random: Generator) -> Iterator[Offered]:
    both = setting if "," in setting else f"{setting},{setting}"
    found = np.array(numbers(both, "lengths uniform", "A-B,C-D"))
    low, high = found[::2], found[1::2]
    if (low > high).any():
        raise ConfigError(f"lengths uniform:{setting}: the smaller number of a range comes first")
    return _rows(lambda generator, n: low - 0.5 + generator.random((n, 2)) * (high - low + 1), random)


def _fixed(setting: str, random: Generator) -> Iterator[Offered]:
    pair = np.array(numbers(setting, "lengths fixed", "PROMPT,OUTPUT"))
    return _rows(lambda generator, n: np.broadcast_to(pair, (n, 2)), random)


def _prefix(setting: str, random: Generator) -> Iterator[Offered]:
    """Each prompt begins with one of GROUPS texts of SHARED tokens and goes on with OWN tokens of its own."""
    found = numbers(setting, "lengths prefix", "SHARED,OWN,OUTPUT,GROUPS")
    shared, own, output, groups = (max(int(number), 1) for number in found)
    for row, group in enumerate(chain.from_iterable(
            random.integers(groups, size=_BLOCK).tolist() for _ in iter(int, 1)), start=1):
        yield Offered(arrived_s=0.0, num_prompt=shared + own, num_output=output, prefix=(group,),
                      block_tokens=shared, row=row)


_LENGTHS: Table[Callable[[str, Generator], Iterator[Offered]]] = Table("length distribution", {
    "lognormal": _lognormal, "uniform": _uniform, "fixed": _fixed, "prefix": _prefix,
    **{name: partial(_measured, name) for name in MEASURED}})
