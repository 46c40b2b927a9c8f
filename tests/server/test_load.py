"""Protects the server under load for long: hundreds of clients who stream, draw, stop, leave and err, and a
server that afterwards holds no more than before. Part of `make soak`."""

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.process import Server, serving
from tests.server.tiny import tiny_folder

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(1800)]
M = "SmolLM2-135M-Instruct"
WORDS = ["ridge", "roof", "rain", "river", "stone", "light", "field", "song", "bread", "winter"]
GROWTH_BYTES = 48 << 20  # what a second wave may add to the engine, which has its caches after the first


def _prompt(dice: random.Random) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(dice.randint(1, 60)))


async def _one(client: openai.AsyncOpenAI, seed: int) -> None:
    """One client's visit; any answer that is not what was asked for raises."""
    dice = random.Random(seed)
    fields: dict[str, Any] = {"model": M, "max_tokens": dice.randint(1, 24), "seed": seed}
    kind = dice.choice(("chat", "choices", "stream", "leave", "stop", "refused"))
    turn = [{"role": "user", "content": _prompt(dice)}]
    if kind == "chat":
        found = await client.chat.completions.create(messages=turn, **fields)
        assert found.usage.completion_tokens <= fields["max_tokens"]
    elif kind == "choices":
        found = await client.completions.create(prompt=[_prompt(dice), _prompt(dice)], n=2, **fields)
        assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    elif kind == "stop":
        found = await client.completions.create(prompt=_prompt(dice), stop=["e", " "], **fields)
        assert "e" not in found.choices[0].text
    elif kind == "refused":
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(prompt="a", temperature=-1, **fields)
    else:
        stream = await client.chat.completions.create(messages=turn, stream=True, **fields)
        async for chunk in stream:
            if kind == "leave" and chunk.choices and dice.random() < 0.2:
                await stream.close()
                return


async def _wave(server: Server, seeds: range, at_once: int) -> None:
    gate = asyncio.Semaphore(at_once)
    async with server.async_openai() as client:
        client = client.with_options(timeout=300)

        async def visit(seed: int) -> None:
            async with gate:
                await _one(client, seed)

        await asyncio.gather(*(visit(seed) for seed in seeds))


def _held_bytes(server: Server) -> int:
    """Anonymous memory of the engine process."""
    (pid,) = server.children()
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


async def test_many_visits_leave_nothing() -> None:
    """A cache that holds a third of those who are there at once: the others wait."""
    with serving("--max-num-seqs", "64", "--kv-cache-bytes", "48MB") as server:
        server.probe()
        await _wave(server, range(150), at_once=60)
        server.idle(30)
        before = _held_bytes(server)
        await _wave(server, range(150, 450), at_once=60)
        server.idle(30)
        server.probe()
        now = server.metrics()
        assert _held_bytes(server) - before < GROWTH_BYTES
    floor_s, took_s = (now[f"ridgeline:engine_step{name}_seconds_total"] for name in ("_floor", ""))
    assert 0 < floor_s < took_s


async def test_a_burst_beyond_the_target_is_shed_and_told(tmp_path: Path) -> None:
    """More than can begin in time, streamed and whole: each is answered, or sent away until a time that is
    told; none hangs, and whoever comes afterwards is served."""
    words = (str(tiny_folder(tmp_path)), "--load-format", "dummy", "--kv-cache-bytes", "4MB",
             "--max-num-seqs", "2")
    with serving(*words, "--ttft", "300ms", "--overload", "shed") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            answers = await asyncio.gather(*(client.post("/v1/completions", json={
                "prompt": [5 + (7 * number + place) % 200 for place in range(60 + number)], "max_tokens": 60,
                "ignore_eos": True, "stream": bool(number % 2),
            }) for number in range(40)))  # fmt: skip
        shed = [answer for answer in answers if answer.status_code == 429]
        assert shed and {answer.status_code for answer in answers} <= {200, 429}
        for answer in shed:
            assert int(answer.headers["retry-after"]) >= 1 and answer.json()["error"]["code"] == "overloaded"
        server.idle(30)
        now = server.metrics()
        assert now["ridgeline:requests_late_total|shed"] == len(shed)
        account = server.http.get("/v1/ridgeline/requests/" + shed[0].headers["x-request-id"]).json()
        assert account["choices"][0]["finish_reason"] == "shed"
        assert server.http.post("/v1/completions", json={"prompt": [5], "max_tokens": 1}).status_code == 200
