"""A server at 80 % of its capacity for as long as it takes to see a drift: `python -m tests.faults.soak
[--minutes N]`.

Requests arrive at random at the rate that keeps 80 % of the rows busy, and ask for lengths of every kind;
some leave in the middle. Each sixth is told. The last third must be as fast as the first, to the first token
and between tokens, and each process must hold no more memory than after the first third, and as many files.
Each third has the same requests at the same moments: how long the slowest hundredth waits hangs on which of
them come together, and would differ by half between thirds that are merely alike.

A machine whose neighbours come and go drifts itself. So a fixed piece of work is timed beside the load, in
its own CPU seconds, which waiting for the server does not lengthen: the last third may be slower by as much
as the p99 of that piece grew, but by no more than MOST_SLOWER. One that slowed by more fails, and is named.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ridgeline.account.kept import MOST_REQUESTS
from tests.faults.client import ask, completion, held_bytes, num_open, request_bytes
from tests.faults.engine import STEP_MS
from tests.server.process import Server, serving
from tests.server.tiny import tiny_folder

MINUTES = 30.0
SHARE = 0.8
ROWS, STEP_S, MEAN_TOKENS = 16, 0.010, 60
LEAVING = 0.05
DRIFT, FLAT = 0.10, 0.02  # of a p99 between thirds, beside DRIFT_S; of memory
DRIFT_S = 0.001  # a tenth of a step
MOST_SLOWER = 1.3  # of the machine, that is forgiven
PIECE, PIECE_EVERY_S = 3000, 0.1  # additions, a fifth of a millisecond of them
MORE_FILES = 4  # that a process may hold for other reasons
THIRDS, WINDOWS = 3, 6


@dataclass
class Window:
    """What came in one part of the time: seconds to the first token of each answer and for each further one,
    CPU seconds of each piece of work beside, and bytes held at its end, by process."""

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    piece_s: list[float] = field(default_factory=list)
    held: list[int] = field(default_factory=list)


def judge(windows: Sequence[Window]) -> None:
    """AssertionError on any drift or growth between the first third and the last."""
    third = len(windows) // THIRDS

    def p99(part: Sequence[Window], name: str) -> float:
        return float(np.quantile([one for window in part for one in getattr(window, name)], 0.99))

    parts = windows[:third], windows[-third:]
    ratio = p99(parts[1], "piece_s") / p99(parts[0], "piece_s")
    slower = min(MOST_SLOWER, max(1.0, ratio))
    for name in ("ttft_s", "tpot_s"):
        first, last = (p99(part, name) for part in parts)
        print(f"p99 of {name}: first third {first * 1e3:.2f} ms, last {last * 1e3:.2f} ms; the machine's own "
              f"work took {ratio:.2f} times as long, of which {slower:.2f} is forgiven")
        assert last <= first * slower * (1 + DRIFT) + DRIFT_S, (
            f"the p99 of {name} went from {first} to {last}, and the machine's own work to {ratio:.2f} times")
    early, late = windows[third - 1].held, windows[-1].held
    print(f"held by process, bytes: {early} after the first third, {late} at the end")
    assert all(b <= a * (1 + FLAT) for a, b in zip(early, late, strict=True)), f"grown: {early}, {late}"


@dataclass(frozen=True)
class Arrival:
    """A request: seconds after its third began, tokens asked for, bytes after which its client leaves."""

    at_s: float
    length: int
    leave_after: int | None


def arrivals(seconds: float) -> list[Arrival]:
    """What comes in a third of so many seconds; the same each time."""
    dice, at_s, found = random.Random(0), 0.0, list[Arrival]()
    rate = SHARE * ROWS / (MEAN_TOKENS * STEP_S)
    while (at_s := at_s + dice.expovariate(rate)) < seconds:
        length = 2 + min(1000, int(dice.expovariate(1 / (MEAN_TOKENS - 2))))
        found.append(Arrival(at_s, length, 500 if dice.random() < LEAVING else None))
    return found


async def load(server: Server, seconds: float, windows: int) -> list[Window]:
    """Arrivals for so long, in so many windows."""
    port, third_s = int(server.url.rpartition(":")[2]), seconds / THIRDS
    pids = [server.process.pid, *server.children()]
    found = [Window() for _ in range(windows)]
    running: set[asyncio.Task[None]] = set()
    began = time.monotonic()

    async def one(number: int, asked: Arrival) -> None:
        length, leave = asked.length, asked.leave_after
        request = request_bytes("/v1/completions", completion(length, seed=number))
        sent = time.monotonic()
        got = await ask(port, request, leave_after=leave)
        assert got.status == 200
        if leave is None:
            assert got.num_tokens == length, (got.num_tokens, length)
            place = min(windows - 1, int((sent - began) / seconds * windows))
            found[place].ttft_s.append(got.first_s)
            found[place].tpot_s.append((got.last_s - got.first_s) / (length - 1))

    async def work() -> None:
        while True:
            place = int((time.monotonic() - began) / seconds * windows)
            found[min(windows - 1, place)].piece_s.append(piece_s())
            await asyncio.sleep(PIECE_EVERY_S)

    working, part, planned = asyncio.create_task(work()), 0, arrivals(third_s)
    for number, (third, asked) in enumerate(product(range(THIRDS), planned)):
        await asyncio.sleep(max(0.0, began + third * third_s + asked.at_s - time.monotonic()))
        task = asyncio.create_task(one(number, asked))
        running.add(task)
        task.add_done_callback(running.discard)
        if time.monotonic() - began >= seconds / windows * (part + 1) and part < windows - 1:
            found[part].held = [*map(held_bytes, pids)]
            _tell(part, found[part])
            part += 1
    await asyncio.gather(*running)
    working.cancel()
    found[-1].held = [*map(held_bytes, pids)]
    _tell(windows - 1, found[-1])
    return found


def piece_s() -> float:
    """CPU seconds of a fixed piece of work."""
    began = time.thread_time()
    sum(number * number for number in range(PIECE))
    return time.thread_time() - began


def _tell(part: int, window: Window) -> None:
    first, each = (np.quantile(times, (0.5, 0.99)) * 1e3 for times in (window.ttft_s, window.tpot_s))
    held = ", ".join(f"{one / 1e6:.1f}" for one in window.held)
    print(f"{part + 1}: {len(window.ttft_s)} answers, p50 and p99 in ms: first token {first[0]:.1f} and "
          f"{first[1]:.1f}, further ones {each[0]:.2f} and {each[1]:.2f}; {held} MB held", flush=True)


def run(minutes: float) -> None:
    """AssertionError on any drift or growth."""
    with TemporaryDirectory() as folder:
        words = (str(tiny_folder(Path(folder))), "--load-format", "dummy", "--kv-cache-bytes", "128MB",
                 "--max-num-seqs", str(ROWS))
        environment = {STEP_MS: str(STEP_S * 1e3)}
        with serving(*words, engine="tests.faults.engine", environment=environment) as server:
            asyncio.run(fill(int(server.url.rpartition(":")[2])))
            server.idle(30)
            pids = [server.process.pid, *server.children()]
            files = [*map(num_open, pids)]
            windows = asyncio.run(load(server, minutes * 60, WINDOWS))
            server.idle(30)
            judge(windows)
            now = [*map(num_open, pids)]
            assert all(b <= a + MORE_FILES for a, b in zip(files, now)), f"files left open: {files}, {now}"


async def fill(port: int) -> None:
    """What the server remembers of its newest requests is as large as it gets."""
    gate = asyncio.Semaphore(32)

    async def one() -> None:
        async with gate:
            await ask(port, request_bytes("/v1/completions", completion(1, stream=False)))

    await asyncio.gather(*(one() for _ in range(MOST_REQUESTS)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES,
                        help="under ten, what is remembered of requests still grows: a mere try")
    run(parser.parse_args().minutes)
    sys.exit(0)
