"""C-12 and C-13: usage in streams, and clients that vanish."""

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.server.process import Server

pytestmark = pytest.mark.anyio
TWENTY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story."}], "n": 2, "max_tokens": 20,
    "ignore_eos": True,
}  # fmt: skip


# ---- C-12


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_c12_no_usage_unless_asked(server: Server, options: Any) -> None:
    body = TWENTY if options is None else TWENTY | {"stream_options": options}
    assert not any(event.get("usage") for event in server.events("/v1/chat/completions", body))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_c12_usage_in_one_last_chunk(server: Server, path: str) -> None:
    body = dict(TWENTY) if "chat" in path else {**TWENTY, "prompt": ["Tell me", "A story"]}
    if "chat" not in path:
        del body["messages"]
    events = server.events(path, body | {"stream_options": {"include_usage": True}})
    assert all(event.get("usage") is None and event["choices"] for event in events[:-1])
    assert events[-1]["choices"] == []
    whole = server.post(path, body | {"temperature": 0}).json()["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert events[-1]["usage"][name] == whole[name]
    assert whole["completion_tokens"] == (40 if "chat" in path else 80)


# ---- C-13


async def _open_stream(server: Server, index: int) -> Any:
    """A raw connection that has received its first event."""
    body = {"prompt": [5 + index, 6], "max_tokens": 2000, "ignore_eos": True, "stream": True}
    return await _opened(server, "/v1/completions", body)


async def _opened(server: Server, path: str, fields: dict[str, Any], until: bytes = b"data: {") -> Any:
    """A raw connection that has asked, and has received something; nothing where that is empty."""
    where = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    body = json.dumps(fields).encode()
    writer.write(
        b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body
    )
    if until:
        await reader.readuntil(until)
    return writer


@pytest.mark.parametrize("hard", [False, True], ids=["close", "reset"])
async def test_c13_all_clients_vanish_at_once(server: Server, hard: bool) -> None:
    writers = await asyncio.gather(*(_open_stream(server, index) for index in range(16)))
    assert (await asyncio.to_thread(server.metrics))["vllm:num_requests_running"] == 16
    for writer in writers:
        if hard:
            writer.transport.abort()
        else:
            writer.close()
    await asyncio.to_thread(server.idle, 5.0)
    before = server.metrics()
    await asyncio.sleep(1.0)
    after = server.metrics()
    assert before["vllm:generation_tokens_total"] == after["vllm:generation_tokens_total"]
    assert before["ridgeline:engine_steps_total"] == after["ridgeline:engine_steps_total"]


TURNS = [{"role": "user", "content": "Count to a thousand."}]
LONG: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 2000, "n": 3, "ignore_eos": True}),
    ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 2000,
                              "response_format": {"type": "json_schema", "json_schema": {
                                  "name": "a", "schema": {"type": "array", "items": {"type": "integer"},
                                                          "minItems": 500}}}}),
    ("/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 2000, "ignore_eos": True, "echo": True,
                         "logprobs": 2}),
    ("/v1/messages", {"model": "SmolLM2-135M-Instruct", "messages": TURNS, "max_tokens": 2000}),
    ("/v1/responses", {"input": "Count to a thousand.", "max_output_tokens": 2000}),
]  # fmt: skip


@pytest.mark.parametrize("when", ["streaming", "before the first event", "unstreamed"])
async def test_c13_clients_of_every_dialect_vanish(server: Server, when: str) -> None:
    """With several choices and prompts, with a grammar, in other dialects; in the middle of a stream, while
    the prompt waits, and while an answer that is sent whole is made."""
    bodies = [(path, body | ({} if when == "unstreamed" else {"stream": True})) for path, body in LONG]
    until = b"data: {" if when == "streaming" else b""
    writers = await asyncio.gather(*(_opened(server, path, body, until) for path, body in bodies))
    if when != "streaming":
        await asyncio.sleep(0.05)
    for writer in writers:
        writer.transport.abort()
    await asyncio.to_thread(server.idle, 5.0)
    before = server.metrics()
    await asyncio.sleep(0.3)
    assert before["ridgeline:engine_steps_total"] == server.metrics()["ridgeline:engine_steps_total"]
    server.probe()


def test_c13_the_first_token_histogram_tells_the_truth(server: Server) -> None:
    """What the server counts is what a client measures."""
    name = "vllm:time_to_first_token_seconds"
    before, spent = server.metrics(), 0.0
    for index in range(12):
        body = {"prompt": [5, 6, 7 + index] * 20, "max_tokens": 2, "ignore_eos": True, "stream": True}
        began = time.monotonic()
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            spent += time.monotonic() - began
            assert list(lines)
    after = server.metrics()
    buckets = [(float(k.rpartition("|")[2]), v) for k, v in after.items() if k.startswith(f"{name}_bucket|")]
    assert [v for _, v in buckets] == sorted(v for _, v in buckets)
    assert buckets[-1][1] == after[f"{name}_count"] and buckets[-2][0] >= 60
    assert buckets[0][1] < after[f"{name}_count"]
    assert after[f"{name}_count"] - before[f"{name}_count"] == 12
    assert after[f"{name}_sum"] - before[f"{name}_sum"] == pytest.approx(spent, rel=0.2)
