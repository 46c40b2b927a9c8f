"""ServeGen (Xiang et al., arXiv 2505.09999): clients' rates by ten-minute window, and PDFs of lengths.

"servegen:RATES.csv,LENGTHS.json,..." draws each client's arrivals in each of its windows, with gaps of the
fitted kind and shape (Gamma or Weibull) and a mean of 1 / rate (the fitted scale misses it by more than 5 %
in a third of the windows). Lengths come from the PDFs of the files, given to the clients in turn, by the time
of the day; a time without any takes those before it. Lengths alone bring no times. A request has one tile an
image: the models behind these files cut none. Reasoning tokens are part of the output.
"""

import ast
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ridgeline.base.errors import ConfigError
from ridgeline.workload.offered import Offered
from ridgeline.workload.source import Source
from ridgeline.workload.traces.rows import Row, csv_rows, split

COLUMNS = ("client", "window_start_s", "rate_rps", "pattern", "pattern_arg1")
_WINDOW_S, _DAY_S = 600.0, 86_400.0
_BLOCK = 1024  # requests drawn at a time
_MEDIA = ("image", "audio", "video")
_USED = {"input_tokens", "text_tokens", "output_tokens",
         *(f"{medium}_{what}" for medium in _MEDIA for what in ("tokens", "count"))}
Ints = NDArray[np.int64]


def recognises(head: str) -> bool:
    return set(COLUMNS) <= set(split(head))


def read(paths: tuple[Path, ...], random: Generator) -> Source:
    """ConfigError when there are no lengths among the files."""
    rates = [path for path in paths if path.suffix == ".csv"]
    lengths = [_Lengths.of(path) for path in paths if path.suffix != ".csv"]
    about = f"ServeGen, {' and '.join(path.name for path in paths)}"
    if not lengths or len(rates) > 1:
        raise ConfigError("ServeGen needs files of lengths, and one of rates unless a rate is given: write "
                          "servegen:RATES.csv,LENGTHS.json or servegen:LENGTHS.json")
    if rates:
        return Source(requests=_day(rates[0], lengths, random), timed=True, about=about)
    return Source(requests=_endless(lengths, random), timed=False, about=about)


def _day(path: Path, lengths: list["_Lengths"], random: Generator) -> Iterator[Offered]:
    """All clients' requests, window by window."""
    rows = sorted(csv_rows(path, COLUMNS), key=lambda row: row.number_of("window_start_s"))
    for start_s, window in groupby(rows, key=lambda row: row.number_of("window_start_s")):
        offered: list[Offered] = []
        for row in window:
            client = int(row.number_of("client"))
            times_s = start_s - rows[0].number_of("window_start_s") + _gaps(row, random)
            drawn = lengths[client % len(lengths)].draw(len(times_s), start_s, random)
            offered += _offered(times_s.tolist(), drawn, tenant=f"client {client}", first=row.number)
        yield from sorted(offered, key=lambda request: request.arrived_s)


def _gaps(row: Row, random: Generator) -> NDArray[np.float64]:
    """One client's arrivals in one window, from its start, in seconds."""
    rate, shape = row.number_of("rate_rps"), row.number_of("pattern_arg1")
    if rate <= 0 or shape <= 0:
        raise row.error("rate_rps and pattern_arg1 must be above 0")
    num = int(rate * _WINDOW_S + 6 * math.sqrt(rate * _WINDOW_S) / min(shape, 1.0)) + 8
    match row.get("pattern"):
        case "Gamma":
            gaps = random.standard_gamma(shape, num) / shape
        case "Weibull":
            gaps = random.weibull(shape, num) / math.gamma(1 + 1 / shape)
        case other:
            raise row.error(f"pattern is {other!r}: Gamma and Weibull are known")
    gaps[0] *= random.random()  # the window opens between two arrivals
    times_s = np.cumsum(gaps / rate)
    return times_s[times_s < _WINDOW_S]


def _endless(lengths: list["_Lengths"], random: Generator) -> Iterator[Offered]:
    block = 0
    while True:
        drawn = lengths[block % len(lengths)].draw(_BLOCK, None, random)
        yield from _offered([0.0] * _BLOCK, drawn, tenant="", first=block * _BLOCK + 1)
        block += 1


def _offered(times_s: list[float], drawn: tuple[Ints, Ints, Ints], *, tenant: str,
             first: int) -> Iterator[Offered]:
    """first: the row that they all come from, or the first of drawn ones."""
    for arrived_s, prompt, output, tiles in zip(times_s, *(part.tolist() for part in drawn), strict=True):
        yield Offered(arrived_s=arrived_s, num_prompt=prompt, num_output=output, num_tiles=tiles,
                      tenant=tenant, row=first)


@dataclass(frozen=True, slots=True)
class _Pdf:
    """Values in rising order, and the sums of their probabilities up to each."""

    values: Ints
    sums: NDArray[np.float64]

    def draw(self, num: int, random: Generator) -> Ints:
        place = np.searchsorted(self.sums, random.random(num) * self.sums[-1], side="right")
        return self.values[np.minimum(place, len(self.values) - 1)]


@dataclass(frozen=True, slots=True)
class _Lengths:
    """One client's PDFs, by the second of the day from which each set holds."""

    periods: tuple[tuple[float, Mapping[str, _Pdf]], ...]

    @classmethod
    def of(cls, path: Path) -> "_Lengths":
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            periods = [(float(start), {name: _pdf(pdf) for name, pdf in sets.items() if name in _USED})
                       for start, sets in values.items() if len(sets["output_tokens"]) > len("{}")]
        except (ValueError, TypeError, KeyError, SyntaxError, AttributeError) as error:
            raise ConfigError(f"{path}: not ServeGen's PDFs of lengths ({error})") from None
        for start, sets in periods:
            if not {"input_tokens", "text_tokens"} & set(sets):
                raise ConfigError(f"{path}, period {start:g}: input_tokens or text_tokens are needed")
        if not periods:
            raise ConfigError(f"{path} holds no lengths")
        return cls(tuple(sorted(periods, key=lambda period: period[0])))

    def draw(self, num: int, at_s: float | None, random: Generator) -> tuple[Ints, Ints, Ints]:
        """Prompts, outputs and tiles of num requests, `at_s` of a day; None: at any hour."""
        if at_s is None:
            pdfs = self.periods[int(random.integers(len(self.periods)))][1]
        else:
            begun = [sets for start, sets in self.periods if start <= at_s % _DAY_S]
            pdfs = begun[-1] if begun else self.periods[-1][1]
        prompts = pdfs["text_tokens" if "text_tokens" in pdfs else "input_tokens"].draw(num, random)
        tiles = np.zeros(num, dtype=np.int64)
        for medium in _MEDIA:
            if f"{medium}_count" in pdfs:
                counts = pdfs[f"{medium}_count"].draw(num, random)
                tokens = pdfs[f"{medium}_tokens"].draw(int(counts.sum()), random)
                owners = np.repeat(np.arange(num), counts)
                prompts = prompts + np.bincount(owners, weights=tokens, minlength=num).astype(np.int64)
                tiles = tiles + counts if medium == "image" else tiles
        return np.maximum(prompts, 1), np.maximum(pdfs["output_tokens"].draw(num, random), 1), tiles


def _pdf(text: Any) -> _Pdf:
    """A PDF as ServeGen writes it: {value: probability} as Python prints it."""
    pairs = sorted(ast.literal_eval(text).items() if isinstance(text, str) else text.items())
    values = np.array([value for value, _ in pairs], dtype=np.float64)
    chances = np.array([chance for _, chance in pairs], dtype=np.float64)
    if not len(pairs) or not np.isfinite(values).all() or not (chances >= 0).all() or not chances.sum() > 0:
        raise ValueError("a PDF needs values with probabilities")
    return _Pdf(values.astype(np.int64), np.cumsum(chances))
