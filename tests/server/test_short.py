"""Protects the short way past uvicorn's send: the same bytes on the connection, and never where send would
not write at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from ridgeline.server.short import ShortProtocol

pytestmark = pytest.mark.anyio
PARTS = [b"data: 1\n\n", b"", b"x" * 300, b"\r\n0\r\n\r\n"]
Write = Callable[[bytes], bool]


class Wire(asyncio.Transport):
    sent = b""

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return False


async def _answered(
    body: Callable[[RequestResponseCycle, Write], Awaitable[None]], headers: list[tuple[bytes, bytes]]
) -> bytes:
    """An answer on its connection, of which `body` gives all between head and end."""
    over = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = scope["write"]
        assert not write(b"before the head")
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await body(protocol.cycle, write)
        await send({"type": "http.response.body", "body": b""})
        over.set()

    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    protocol, wire = ShortProtocol(config, ServerState(), {}), Wire()
    protocol.connection_made(wire)
    protocol.data_received(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
    async with asyncio.timeout(5):
        await over.wait()
    return wire.sent


async def _sent(cycle: RequestResponseCycle, write: Write) -> None:
    for part in PARTS:
        await cycle.send({"type": "http.response.body", "body": part, "more_body": True})


async def test_it_writes_what_send_would() -> None:
    async def written(cycle: RequestResponseCycle, write: Write) -> None:
        for part in PARTS:
            assert write(part) == bool(part), "nothing at all would be the end"

    assert await _answered(written, []) == await _answered(_sent, [])


async def test_where_send_would_wait_or_drop_or_count_it_writes_nothing() -> None:
    async def refused(cycle: RequestResponseCycle, write: Write) -> None:
        assert not any(map(write, PARTS)), "this body is not in chunks"
        await _sent(cycle, write)

    length = [(b"content-length", b"%d" % sum(map(len, PARTS)))]
    assert await _answered(refused, length) == await _answered(_sent, length)

    async def tried(cycle: RequestResponseCycle, write: Write) -> None:
        cycle.flow.pause_writing()
        assert not write(b"the connection is full")
        cycle.flow.resume_writing()
        cycle.disconnected = True
        assert not write(b"nobody reads it")
        cycle.disconnected = False

    assert (await _answered(tried, [])).partition(b"\r\n\r\n")[2] == b"0\r\n\r\n"
