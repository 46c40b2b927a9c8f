"""A server at 80 % of its capacity for as long as it takes to see a drift: `python -m tests.faults.soak
[--minutes N]`.

Requests arrive at random at the rate that keeps 80 % of the rows busy, and ask for lengths of every kind;
some leave in the middle. Each sixth is told; the last third must be as fast as the first, and hold as much.
"""

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ridgeline.api.accounts import MOST_REQUESTS
from tests.faults.client import ask, completion, held_bytes, request_bytes
from tests.faults.engine import STEP_MS
from tests.server.process import Server, serving
from tests.server.tiny import tiny_folder

MINUTES = 30.0
SHARE = 0.8
ROWS, STEP_S, MEAN_TOKENS = 16, 0.010, 60
LEAVING = 0.05
DRIFT, FLAT = 0.10, 0.02  # of a p99 between thirds, beside DRIFT_S; of memory
DRIFT_S = 0.005


@dataclass
class Window:
    """What came in one part of the time: seconds a token of each answer, and bytes held at its end."""

    tpot_s: list[float] = field(default_factory=list)
    held: int = 0

    @property
    def p99_s(self) -> float:
        return float(np.quantile(self.tpot_s, 0.99))


async def load(server: Server, seconds: float, windows: int) -> list[Window]:
    """Arrivals for so long, in so many windows."""
    port, dice = int(server.url.rpartition(":")[2]), random.Random(0)
    pids = [server.process.pid, *server.children()]
    rate = SHARE * ROWS / (MEAN_TOKENS * STEP_S)
    found = [Window() for _ in range(windows)]
    running: set[asyncio.Task[None]] = set()
    began = time.monotonic()

    async def one(number: int) -> None:
        length = 2 + min(1000, int(dice.expovariate(1 / (MEAN_TOKENS - 2))))
        leave = 500 if dice.random() < LEAVING else None
        request = request_bytes("/v1/completions", completion(length, seed=number))
        sent = time.monotonic()
        got = await ask(port, request, leave_after=leave)
        took = time.monotonic() - sent
        assert got.status == 200
        if leave is None:
            assert got.num_tokens == length, (got.num_tokens, length)
            place = min(windows - 1, int((sent - began) / seconds * windows))
            found[place].tpot_s.append(took / length)

    number, due, part = 0, began, 0
    while (now := time.monotonic()) < began + seconds:
        due += dice.expovariate(rate)
        await asyncio.sleep(max(0.0, due - now))
        task = asyncio.create_task(one(number))
        running.add(task)
        task.add_done_callback(running.discard)
        number += 1
        if time.monotonic() - began >= seconds / windows * (part + 1) and part < windows - 1:
            found[part].held = sum(map(held_bytes, pids))
            _tell(part, found[part])
            part += 1
    await asyncio.gather(*running)
    found[-1].held = sum(map(held_bytes, pids))
    _tell(windows - 1, found[-1])
    return found


def _tell(part: int, window: Window) -> None:
    print(f"{part + 1}: {len(window.tpot_s)} answers, a token of each in p50 "
          f"{np.median(window.tpot_s) * 1e3:.2f} ms, p99 {window.p99_s * 1e3:.2f} ms; "
          f"{window.held / 1e6:.1f} MB held", flush=True)


def run(minutes: float) -> None:
    """AssertionError on any drift or growth."""
    with TemporaryDirectory() as folder:
        words = (str(tiny_folder(Path(folder))), "--load-format", "dummy", "--kv-cache-bytes", "128MB",
                 "--max-num-seqs", str(ROWS))
        environment = {STEP_MS: str(STEP_S * 1e3)}
        with serving(*words, engine="tests.faults.engine", environment=environment) as server:
            asyncio.run(_fill(int(server.url.rpartition(":")[2])))
            windows = asyncio.run(load(server, minutes * 60, 6))
            server.idle(30)
            first, last = windows[:2], windows[-2:]
            p99 = [float(np.quantile([one for window in third for one in window.tpot_s], 0.99))
                   for third in (first, last)]
            print(f"p99 of the first third {p99[0] * 1e3:.2f} ms, of the last {p99[1] * 1e3:.2f} ms; "
                  f"{windows[1].held / 1e6:.1f} MB, {windows[-1].held / 1e6:.1f} MB")
            assert p99[1] <= p99[0] * (1 + DRIFT) + DRIFT_S, p99
            assert windows[-1].held <= windows[1].held * (1 + FLAT)


async def _fill(port: int) -> None:
    """What the server remembers of its newest requests is as large as it gets."""
    gate = asyncio.Semaphore(32)

    async def one() -> None:
        async with gate:
            await ask(port, request_bytes("/v1/completions", completion(1, stream=False)))

    await asyncio.gather(*(one() for _ in range(MOST_REQUESTS)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    run(parser.parse_args().minutes)
    sys.exit(0)
