"""`ridgeline bench serve`: connect, warm up, send the workload, and tell what came of it."""

import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

from ridgeline.base.errors import ConfigError
from ridgeline.bench.serve.ask import ServeAsk
from ridgeline.bench.serve.client import Client, Observed
from ridgeline.bench.serve.drive import drive
from ridgeline.bench.serve.numbers import result
from ridgeline.bench.serve.page import page
from ridgeline.bench.serve.text import report
from ridgeline.workload.lengths import uniform_lengths
from ridgeline.workload.make import make_workload
from ridgeline.workload.offered import Workload

_PROGRESS_S = 1.0
_WARM_UP_PLACE = 1 << 17  # of their prompts, far from the workload's


def run(ask: ServeAsk, write: Callable[[str], object] = print) -> int:
    """The exit code: 1 when too many requests failed, which stderr says last. ConfigError for a server that
    cannot be asked."""
    for path in (ask.save, ask.html):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
    found = asyncio.run(measure(ask, make_workload(ask.workload)))
    data = json.dumps(found, allow_nan=False)
    write(data if ask.json else report(found))
    if ask.save is not None:
        ask.save.write_text(data + "\n", encoding="utf-8")
    if ask.html is not None:
        ask.html.write_text(page(found), encoding="utf-8")
    verdict = too_many_failed(found, ask.max_failed)
    if verdict:
        print(f"ridgeline bench serve: {verdict}", file=sys.stderr)
    return 1 if verdict else 0


def too_many_failed(found: Mapping[str, Any], most: float) -> str:
    """Why a result is none, or "". Clients that left by themselves did not fail."""
    num, failures = found["num_prompts"], found["ridgeline"]["failures"]
    failed = found["failed"] - failures.get("left", 0)
    if failed > most * num:
        return f"{failed} of {num} requests failed, more than --max-failed {most:g} allows"
    return "" if found["completed"] else "no request was answered"


async def measure(ask: ServeAsk, workload: Workload) -> dict[str, Any]:
    """The result as `numbers.result` has it. ConfigError for a server that cannot be asked."""
    client = Client(ask)
    await client.connect()
    for number, offered in enumerate(workload.requests[:ask.num_warmups]):
        await client.send(_WARM_UP_PLACE + number, offered, perf_counter())
    progress = _Progress(len(workload.requests))
    watching = asyncio.ensure_future(progress.run()) if ask.progress else None
    try:
        observed = await drive(workload, client.send, max_concurrency=ask.max_concurrency,
                               duration_s=ask.workload.duration_s, done=progress.add)
    finally:
        if watching is not None:
            watching.cancel()
            progress.close()
    return result(ask, client.model or "", workload.about, observed,
                  uniform=uniform_lengths(ask.workload.lengths or ""))


class _Progress:
    """A line on stderr while a test runs: rewritten on a terminal, else now and then a new one."""

    def __init__(self, num_requests: int) -> None:
        self._num_requests = num_requests
        self._num_answered = self._num_failed = 0
        self._recent_s: deque[float] = deque(maxlen=100)  # TTFT
        self._started_s = perf_counter()
        self._terminal = sys.stderr.isatty()

    def add(self, one: Observed) -> None:
        if one.failure is None:
            self._num_answered += 1
            self._recent_s.append(one.ttft_s)
        else:
            self._num_failed += 1

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S if self._terminal else 10 * _PROGRESS_S)
            ttft = f", TTFT {median(self._recent_s) * 1e3:.0f} ms of late" if self._recent_s else ""
            text = (f"{perf_counter() - self._started_s:.0f} s: {self._num_answered} of {self._num_requests} "
                    f"answered, {self._num_failed} failed{ttft}")
            sys.stderr.write(f"\r{text:78}" if self._terminal else f"{text}\n")
            sys.stderr.flush()

    def close(self) -> None:
        if self._terminal:
            sys.stderr.write("\n")
