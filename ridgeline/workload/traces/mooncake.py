"""Mooncake's traces (kvcache-ai/Mooncake, FAST '25): JSON lines with an id for each 512-token prefix block.

Their conversation trace stamps arrivals every 3 s, many requests to a stamp. Requests of one stamp are spread
at random over the time to the next, at most 3 s, and keep their order. The id of a prompt's last, partial
block is dropped: it can be shared only by a prompt that is the same to its end.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.random import Generator

from ridgeline.workload.offered import Offered
from ridgeline.workload.source import Source
from ridgeline.workload.traces.rows import Row, json_head, json_rows

_BLOCK_TOKENS = 512
_BUCKET_S = 3.0
_MS = 1000.0


def recognises(head: str) -> bool:
    return {"timestamp", "input_length", "output_length"} <= set(json_head(head))


def read(paths: tuple[Path, ...], random: Generator) -> Source:
    (path,) = paths
    return Source(requests=_requests(path, random), timed=True,
                  about=f"{path.name}, arrivals of one stamp spread to the next, {_BUCKET_S:g} s at most")


def _requests(path: Path, random: Generator) -> Iterator[Offered]:
    start_s: float | None = None
    waiting: list[Row] = []
    waiting_s = 0.0
    for stamp_s, rows in groupby(_sorted(path), key=_stamp_s):
        start_s = stamp_s if start_s is None else start_s
        yield from _spread(waiting, waiting_s - start_s, stamp_s - waiting_s, random)
        waiting, waiting_s = list(rows), stamp_s
    yield from _spread(waiting, waiting_s - (start_s or 0.0), _BUCKET_S, random)


def _spread(rows: list[Row], stamp_s: float, room_s: float, random: Generator) -> Iterator[Offered]:
    places = np.sort(random.random(len(rows))) if len(rows) > 1 else np.zeros(len(rows))
    for row, place in zip(rows, places.tolist(), strict=True):
        num_prompt = row.tokens("input_length")
        yield Offered(arrived_s=stamp_s + place * min(room_s, _BUCKET_S), num_prompt=num_prompt,
                      num_output=row.tokens("output_length"), block_tokens=_BLOCK_TOKENS,
                      prefix=_prefix(row, num_prompt), row=row.number)


def _prefix(row: Row, num_prompt: int) -> tuple[int, ...]:
    ids = row.values.get("hash_ids", [])
    full = num_prompt // _BLOCK_TOKENS
    if not isinstance(ids, list) or not all(type(i) is int for i in ids) or 0 < len(ids) < full:
        raise row.error(f"hash_ids must be whole numbers, one for each {_BLOCK_TOKENS} tokens of the prompt")
    return tuple(ids[:full])


def _sorted(path: Path) -> Iterator[Row]:
    before_s = -np.inf
    for row in json_rows(path):
        if _stamp_s(row) < before_s:
            raise row.error("timestamp goes back in time: sort the rows by it")
        before_s = _stamp_s(row)
        yield row


def _stamp_s(row: Row) -> float:
    return row.number_of("timestamp") / _MS
