"""Protects the number of open connections, and the memory: whoever never finishes a head is cut off, and
nobody else."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from ridgeline.server.heads import HEAD_BYTES, HeadsProtocol

pytestmark = pytest.mark.anyio
HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"


class Quick(HeadsProtocol):
    head_s = 0.05


async def _exchange(*parts: bytes) -> bytes:
    """What a connection says on which these come, a fifth of the patience apart, and that then is still."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(3 * Quick.head_s)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=1)
    made: Any = lambda: Quick(config, ServerState(), {})  # noqa: E731
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for part in parts:
            writer.write(part)
            await asyncio.sleep(Quick.head_s / 5)
        said = b""
        async with asyncio.timeout(1):
            with contextlib.suppress(ConnectionError):
                said = await reader.read(1000)
        writer.close()
    return said


async def test_a_head_that_does_not_end_is_given_up() -> None:
    """Nothing at all, a half, and one byte after another."""
    for parts in ([], [HEAD], [HEAD] + [b"x"] * 12):
        assert await _exchange(*parts) == b""


async def test_an_answer_that_takes_long_is_waited_for() -> None:
    assert (await _exchange(HEAD, b"\r\n")).startswith(b"HTTP/1.1 204")


@pytest.mark.parametrize("begin", [HEAD + b"x: ", b"GET /", HEAD + b"x: y\r\n" * 9999])
async def test_a_head_that_goes_on_and_on_is_refused(begin: bytes) -> None:
    """Whoever still sends when the refusal is out hears it all the same."""
    said = await _exchange(begin, b"a" * HEAD_BYTES, b"a" * 2**22)
    assert said.startswith(b"HTTP/1.1 431 ") and b'"head_too_large"' in said


async def test_chunks_may_be_many_and_nothing_behind_them_long() -> None:
    begin = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"1\r\na\r\n" * (HEAD_BYTES // 4)
    assert (await _exchange(begin, chunks, chunks, b"0\r\n\r\n")).startswith(b"HTTP/1.1 204")
    assert await _exchange(begin, b"0\r\nx: ", b"a" * HEAD_BYTES, b"a") == b"", "no words within an answer"


async def test_what_is_no_http_is_told_so() -> None:
    """In the form of every other refusal."""
    head, _, body = (await _exchange(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"content-length: %d" % len(body) in head
    assert json.loads(body)["error"]["code"] == "invalid_http"
