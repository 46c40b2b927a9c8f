"""What HTTP costs: `python -m tests.faults.http [--streams N] [--seconds S] [--rounds N]`.

A real server over an engine whose step takes 20 ms, beside a bare uvicorn loop that streams the same bytes at
the same pace, both read by the same client on the same machine, one after another in each round.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np

from ridgeline.server.serve import run
from tests.faults.engine import FIRST, NUM_MARKS, NUM_TIMES, STEP_MS, TIMES, step_times
from tests.server.process import serving
from tests.server.tiny import tiny_folder

STEP_S = 0.020
WARM_S = 1.5  # after the last stream has begun
MOST_LATE_S = 0.8  # marks come again after NUM_MARKS steps
TEXT = b'"text":"'


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of the streams while all ran. tokens_s: that came; lost: of those that steps of 20 ms make. p50_s,
    p99_s: from a step's end to the client. cpu_s: of the server's process a token, without its engine's."""

    tokens_s: float
    lost: float
    p50_s: float
    p99_s: float
    cpu_s: float


@dataclass
class Sink:
    """Arrivals of all streams: (time, mark) of each event between start_s and end_s."""

    at_s: list[float] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    start_s: float = float("inf")
    end_s: float = float("inf")
    open: int = 0


class Reader(asyncio.Protocol):
    """Sends a request; notes when each event's text came. As little as can be: it shares the machine."""

    def __init__(self, request: bytes, sink: Sink) -> None:
        self._request, self._sink, self._begun = request, sink, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now, sink = time.monotonic(), self._sink
        place = data.find(TEXT)
        if place >= 0 and not self._begun:
            self._begun = True
            sink.open += 1
        while place >= 0:
            place += len(TEXT)
            end = data.find(b'"', place)
            if sink.start_s <= now < sink.end_s:
                sink.at_s += [now] * (end - place)  # more than one where the server is behind
                sink.marks += data[place:end]
            place = data.find(TEXT, end)


async def read(pid: int, port: int, num_streams: int, seconds: float, body: bytes) -> tuple[Sink, float]:
    """Stream until all have run for `seconds` together: what came, and the server's seconds of CPU for it."""
    sink, loop = Sink(), asyncio.get_running_loop()
    request = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    transports = []
    for _ in range(num_streams):
        transport, _ = await loop.create_connection(lambda: Reader(request, sink), "127.0.0.1", port)
        transports.append(transport)
    async with asyncio.timeout(60):
        while sink.open < num_streams:
            await asyncio.sleep(0.05)
    await asyncio.sleep(WARM_S)
    before, sink.start_s = cpu_seconds(pid), time.monotonic()
    sink.end_s = sink.start_s + seconds
    await asyncio.sleep(seconds)
    spent = cpu_seconds(pid) - before
    for transport in transports:
        transport.abort()
    return sink, spent


def measure(pid: int, port: int, times: np.ndarray, num_streams: int, seconds: float) -> Measured:
    body = json.dumps({"prompt": [40, 41, 42], "max_tokens": 1900, "ignore_eos": True, "stream": True,
                       "temperature": 0}).encode()
    sink, spent = run(read(pid, port, num_streams, seconds, body))
    number = np.flatnonzero((times >= sink.start_s - MOST_LATE_S) & (times < sink.end_s))
    ended = times[number]
    at_s, marks = np.array(sink.at_s), np.array(sink.marks) - FIRST
    delays = np.full(len(at_s), np.inf)
    for mark in range(NUM_MARKS):  # the newest step with this mark that had ended by then
        own = np.sort(ended[number % NUM_MARKS == mark])
        mine = np.flatnonzero(marks == mark)
        place = np.searchsorted(own, at_s[mine], "right") - 1
        delays[mine[place >= 0]] = at_s[mine[place >= 0]] - own[place[place >= 0]]
    assert np.isfinite(delays).all()
    return Measured(tokens_s=len(at_s) / seconds, lost=1 - len(at_s) / (seconds / STEP_S * num_streams),
                    p50_s=float(np.quantile(delays, 0.5)), p99_s=float(np.quantile(delays, 0.99)),
                    cpu_s=spent / len(at_s))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def bare(folder: Path, event: str) -> Iterator[tuple[int, int, np.ndarray]]:
    """(process id, port, times) of the bare loop."""
    times = folder / "bare.times"
    np.zeros(NUM_TIMES).tofile(times)
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-m", "tests.faults.bare", str(port_file), str(times),
                                str(STEP_S), event])
    try:
        while not port_file.exists() or not port_file.read_text():
            time.sleep(0.05)
        time.sleep(0.5)
        yield process.pid, int(port_file.read_text()), step_times(times)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def served(folder: Path, num_streams: int) -> Iterator[tuple[int, int, np.ndarray, str]]:
    """(process id, port, times, an event) of the server."""
    times, model = folder / "served.times", folder / "tiny"
    np.zeros(NUM_TIMES).tofile(times)
    model.mkdir(exist_ok=True)
    words = (str(tiny_folder(model)), "--load-format", "dummy", "--kv-cache-bytes", "512MB",
             "--max-num-seqs", str(num_streams))
    environment = {STEP_MS: str(STEP_S * 1e3), TIMES: str(times)}
    with serving(*words, engine="tests.faults.engine", environment=environment) as server:
        with server.http.stream("POST", "/v1/completions", json={
                "prompt": [40], "max_tokens": 3, "ignore_eos": True, "stream": True}) as answer:
            lines = [line for line in answer.iter_lines() if TEXT.decode() in line]
        begin = lines[1].index(TEXT.decode()) + len(TEXT)
        event = lines[1][:begin] + "@@" + lines[1][begin + 1:] + "\n\n"
        yield server.process.pid, int(server.url.rpartition(":")[2]), step_times(times), event


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # past all that must end
    with TemporaryDirectory() as name:
        folder = Path(name)
        with served(folder, args.streams) as (pid, port, times, event), \
                bare(folder, event) as (bare_pid, bare_port, bare_times):
            for _ in range(args.rounds):
                floor = measure(bare_pid, bare_port, bare_times, args.streams, args.seconds)
                ours = measure(pid, port, times, args.streams, args.seconds)
                print(report("bare", floor), report("ridgeline", ours), sep="\n")
                print(f"times bare: p50 {ours.p50_s / floor.p50_s:.2f}, p99 {ours.p99_s / floor.p99_s:.2f}, "
                      f"seconds of the server a token {ours.cpu_s / floor.cpu_s:.2f}", flush=True)
    return 0


def report(name: str, found: Measured) -> str:
    return (f"{name:9} {found.tokens_s:7.0f} tokens/s, {found.lost:6.2%} lost, p50 {found.p50_s * 1e3:6.2f} "
            f"ms, p99 {found.p99_s * 1e3:6.2f} ms, {found.cpu_s * 1e6:5.1f} us of the server a token")


if __name__ == "__main__":
    sys.exit(main())
