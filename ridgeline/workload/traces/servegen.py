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
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

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
Pdf = tuple[Ints, NDArray[np.float64]]  # values, and their probabilities
Lengths = list[tuple[float, dict[str, Pdf]]]  # by the second of the day from which each set holds, in order


def recognises(head: str) -> bool:
    return set(COLUMNS) <= set(split(head))


def read(paths: tuple[Path, ...], random: Generator) -> Source:
    """ConfigError when there are no lengths among the files."""
    rates = [path for path in paths if path.suffix == ".csv"]
    lengths = [_lengths(path) for path in paths if path.suffix != ".csv"]
    about = f"ServeGen, {' and '.join(path.name for path in paths)}"
    if not lengths or len(rates) > 1:
        raise ConfigError("ServeGen needs files of lengths, and one of rates unless a rate is given: write "
                          "servegen:RATES.csv,LENGTHS.json or servegen:LENGTHS.json")
    if rates:
        return Source(requests=_day(rates[0], lengths, random), timed=True, about=about)
    return Source(requests=_endless(lengths, random), timed=False, about=about)


def _day(path: Path, lengths: list[Lengths], random: Generator) -> Iterator[Offered]:
    """All clients' requests, window by window."""
    rows = sorted(csv_rows(path, COLUMNS), key=lambda row: row.number_of("window_start_s"))
    for start_s, window in groupby(rows, key=lambda row: row.number_of("window_start_s")):
        offered: list[Offered] = []
        for row in window:
            client = int(row.number_of("client"))
            times_s = start_s - rows[0].number_of("window_start_s") + _gaps(row, random)
            drawn = _draw(lengths[client % len(lengths)], len(times_s), start_s, random)
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


def _endless(lengths: list[Lengths], random: Generator) -> Iterator[Offered]:
    block = 0
    while True:
        drawn = _draw(lengths[block % len(lengths)], _BLOCK, None, random)
        yield from _offered([0.0] * _BLOCK, drawn, tenant="", first=block * _BLOCK + 1)
        block += 1


def _offered(times_s: list[float], drawn: tuple[Ints, Ints, Ints], *, tenant: str,
             first: int) -> Iterator[Offered]:
    """first: the row that they all come from, or the first of drawn ones."""
    for arrived_s, prompt, output, tiles in zip(times_s, *(part.tolist() for part in drawn), strict=True):
        yield Offered(arrived_s=arrived_s, num_prompt=prompt, num_output=output, num_tiles=tiles,
                      tenant=tenant, row=first)


def _lengths(path: Path) -> Lengths:
    """The sets that hold anything. ConfigError for a file that is none of ServeGen's."""
    try:
        sets = sorted((float(start), sets) for start, sets in json.loads(path.read_text("utf-8")).items())
        found = [(start, {name.replace("input_", "text_"): _pdf(pdfs[name]) for name in _USED & set(pdfs)})
                 for start, pdfs in sets if ast.literal_eval(pdfs["output_tokens"])]
    except (ValueError, TypeError, KeyError, SyntaxError, AttributeError) as error:
        raise ConfigError(f"{path}: not ServeGen's PDFs of lengths ({error})") from None
    if not found or any("text_tokens" not in pdfs for _, pdfs in found):
        raise ConfigError(f"{path}: ServeGen's output_tokens, and input_tokens or text_tokens, are needed")
    return found


def _pdf(text: str) -> Pdf:
    """A PDF as ServeGen writes it: {value: probability} as Python prints it."""
    found = np.array(list(ast.literal_eval(text).items()), dtype=np.float64)
    if not np.isfinite(found).all() or not (found >= 0).all() or not found[:, 1].sum() > 0:
        raise ValueError("a PDF needs values with probabilities")
    return found[:, 0].astype(np.int64), found[:, 1] / found[:, 1].sum()


def _draw(lengths: Lengths, num: int, at_s: float | None, random: Generator) -> tuple[Ints, Ints, Ints]:
    """Prompts, outputs and tiles of num requests, `at_s` of a day; None: at any hour."""
    begun = [pdfs for start, pdfs in lengths if at_s is not None and start <= at_s % _DAY_S]
    pdfs = begun[-1] if begun else lengths[-1 if at_s is not None else random.integers(len(lengths))][1]

    def drawn(name: str, size: int) -> Ints:
        values, chances = pdfs[name]
        return random.choice(values, size, p=chances)

    prompts, tiles = drawn("text_tokens", num), np.zeros(num, dtype=np.int64)
    for medium in _MEDIA:
        if f"{medium}_count" in pdfs:
            counts = drawn(f"{medium}_count", num)
            owners, tokens = np.repeat(np.arange(num), counts), drawn(f"{medium}_tokens", counts.sum())
            prompts = prompts + np.bincount(owners, weights=tokens, minlength=num).astype(np.int64)
            tiles = tiles + counts if medium == "image" else tiles
    return np.maximum(prompts, 1), np.maximum(drawn("output_tokens", num), 1), tiles
