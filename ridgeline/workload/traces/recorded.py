"""A trace that our own engine recorded (`serve --trace-file`): its requests, at the times they arrived."""

from collections.abc import Iterator
from pathlib import Path

from numpy.random import Generator

from ridgeline.base.errors import ConfigError
from ridgeline.base.trace import RequestRecord, read_trace
from ridgeline.workload.offered import Offered
from ridgeline.workload.source import Source
from ridgeline.workload.traces.rows import json_head


def recognises(head: str) -> bool:
    return json_head(head).get("kind") == "header"


def read(paths: tuple[Path, ...], random: Generator) -> Source:
    """Requests that ended before their first token, and choices beyond a request's first, are left out and
    counted in `about`."""
    (path,) = paths
    try:
        records = [record for record in read_trace(path) if isinstance(record, RequestRecord)]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    kept = sorted((r for r in records if r.choice == 0 and r.num_output > 0), key=lambda r: r.arrived_s)
    if not kept:
        raise ConfigError(f"{path} holds no request that was answered")
    left = f", {len(records) - len(kept)} unanswered or further choices left out" * (len(kept) < len(records))
    return Source(requests=_requests(kept), timed=True, about=f"{path.name}, recorded{left}")


def _requests(records: list[RequestRecord]) -> Iterator[Offered]:
    start_s = records[0].arrived_s
    for row, record in enumerate(records, start=1):
        yield Offered(arrived_s=record.arrived_s - start_s, num_prompt=record.num_prompt,
                      num_output=record.num_output, tenant=record.tenant, priority=record.priority, row=row)
