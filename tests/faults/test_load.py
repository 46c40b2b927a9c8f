"""Protects the server from its clients: many at once, those who stop reading, vanish, or send what nobody
should. Afterwards nothing runs, no block is held, memory is as before, and the probe answers.

In small in every run, in full in `make soak`: over an engine whose steps take 2 ms and compute nothing.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from ridgeline.account.kept import MOST_REQUESTS
from tests.faults.client import Got, ask, completion, deaf, held_bytes, request_bytes
from tests.faults.corpus import hostile
from tests.server.process import Server, launch
from tests.server.tiny import tiny_folder

FLAT = 0.02
BEHIND_BYTES = 4 << 20  # of one reader that stopped: 4,096 news, and what is on its way to the socket


def sized(small: int, full: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("num", [small, pytest.param(full, marks=[
        pytest.mark.soak, pytest.mark.timeout(1800)])])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tiny_folder(tmp_path_factory.mktemp("tiny"))
    words = (str(folder), "--load-format", "dummy", "--kv-cache-bytes", "256MB", "--max-num-seqs", "256")
    started = launch(*words, engine="tests.faults.engine")
    yield started
    assert started.stop() == 0, "\n".join(started.output)


def port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


def processes(server: Server) -> list[int]:
    (engine,) = server.children()
    return [server.process.pid, engine]


def settle(server: Server) -> None:
    """Nothing is left, and a plain request is answered."""
    server.idle(30)
    answer = server.post("/v1/completions", {"prompt": [40], "max_tokens": 3, "ignore_eos": True})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3


async def crowd(server: Server, num: int, max_tokens: int, leaving: float) -> list[Got]:
    """So many streams at once, of which a share leaves in the middle."""
    where, every = port(server), round(1 / leaving) if leaving else 0
    return await asyncio.gather(*(
        ask(where, request_bytes("/v1/completions", completion(max_tokens, seed=number)),
            leave_after=600 if every and number % every == 0 else None)
        for number in range(num)))


@sized(150, 1000)
def test_concurrent_streams_are_all_whole(server: Server, num: int) -> None:
    """More than there are rows: every one gets its tokens and its end."""
    for got in asyncio.run(crowd(server, num, 20, 0)):
        assert got.status == 200 and got.num_tokens == 20 and b"data: [DONE]" in got.body
    settle(server)


@sized(150, 1000)
def test_half_of_all_clients_vanish(server: Server, num: int) -> None:
    """Waves of them: the others are whole, and from the second wave on memory is flat."""
    held = []
    for _ in range(3 if num < 1000 else 8):
        answers = asyncio.run(crowd(server, num, 60, 0.5))
        assert all(got.num_tokens == 60 for got in answers[1::2])
        settle(server)
        held.append(sum(map(held_bytes, processes(server))))
    assert held[-1] <= held[len(held) // 2] * (1 + FLAT), held


@sized(4, 8)
def test_readers_that_stop_reading_cost_a_bounded_buffer(server: Server, num: int) -> None:
    """Each asked for 32 choices of 1,900 tokens: their news are joined while they wait, so that the server
    holds little, and it serves others all the while."""
    api = server.process.pid
    settle(server)
    before, peak = held_bytes(api), 0
    request = request_bytes("/v1/completions", completion(1900, n=32))
    silent = [deaf(port(server), request) for _ in range(num)]
    try:
        began = time.monotonic()
        while server.metrics()["ridgeline:num_requests_running"] or time.monotonic() - began < 2:
            peak = max(peak, held_bytes(api))
            assert time.monotonic() - began < 60, "they still run"
            assert server.post("/v1/completions", {"prompt": [40], "max_tokens": 1}).status_code == 200
            time.sleep(0.1)
        assert peak - before < num * BEHIND_BYTES, (peak - before) / num
    finally:
        for sock in silent:
            sock.close()
    settle(server)


@sized(400, 10_000)
def test_hostile_bodies_are_refused_and_leave_nothing(server: Server, num: int) -> None:
    """None is answered with a failure of ours, each refusal has the form, memory stays."""
    where, found = port(server), Counter[int]()

    async def one(gate: asyncio.Semaphore, path: str, body: bytes) -> None:
        async with gate:
            got = await ask(where, request_bytes(path, body))
        found[got.status] += 1
        assert 200 <= got.status < 500, (path, body[:300], got)
        if got.status >= 400:
            assert json.loads(got.body)["error"]["message"], (path, body[:300], got)

    async def fill(size: int) -> None:
        """The longest request, and so many short ones: what is kept of them is as large as it gets."""
        gate, bodies = asyncio.Semaphore(32), [completion(2040, stream=False)]
        bodies += [completion(1, stream=False)] * size
        await asyncio.gather(*(one(gate, "/v1/completions", body) for body in bodies))

    async def wave(seed: int, size: int) -> None:
        gate = asyncio.Semaphore(32)
        await asyncio.gather(*(one(gate, path, body) for path, body in hostile(seed, size)))

    asyncio.run(fill(MOST_REQUESTS if num > MOST_REQUESTS else 0))
    asyncio.run(wave(0, num // 4))
    settle(server)
    before = sum(map(held_bytes, processes(server)))
    asyncio.run(wave(1, num - num // 4))
    settle(server)
    after = sum(map(held_bytes, processes(server)))
    assert after <= before * (1 + FLAT), (before, after)
    assert found[400] > num // 3 and found[200], found
    print(f"{num} bodies: {dict(found)}, {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after")
