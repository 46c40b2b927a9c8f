"""Protects the short way of a stream's bytes: in order, no faster than the connection takes them, and over
when the answer is."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from ridgeline.api.outlet import Outlet
from ridgeline.api.stream import EventStream, Started

pytestmark = pytest.mark.anyio


class Connection:
    """Notes what is sent; while full, whoever sends waits."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.room = asyncio.Event()
        self.room.set()
        self.broken = False

    async def send(self, message: Message) -> None:
        while not self.room.is_set():
            await self.room.wait()
            await asyncio.sleep(0)  # a send may wait more than once
        if self.broken:
            raise OSError("the connection broke")
        self.sent.append(message.get("body", b""))


async def test_it_writes_at_once_and_waits_for_a_full_connection() -> None:
    connection, outlet = Connection(), Outlet()
    clear = [outlet.clear]  # nothing may come before the head
    outlet.open(connection.send)
    outlet.write(b"a")
    assert connection.sent == [b"a"]
    clear.append(outlet.clear)
    connection.room.clear()
    outlet.write(b"b")
    assert connection.sent == [b"a"]
    clear.append(outlet.clear)
    await asyncio.sleep(0)
    connection.room.set()
    await outlet.settle()
    assert connection.sent == [b"a", b"b"] and [*clear, outlet.clear] == [False, True, False, True]
    connection.room.clear()
    outlet.write(b"c")
    await outlet.close()
    connection.room.set()
    await asyncio.sleep(0.01)
    assert connection.sent == [b"a", b"b"] and not outlet.clear, "closed: nothing is sent any more"


async def test_the_way_past_send_is_there_while_it_is_open() -> None:
    connection, outlet, sooner = Connection(), Outlet(), list[bytes]()

    def write(part: bytes) -> bool:
        sooner.append(part)
        return True

    assert not outlet.sooner(b"too soon")
    outlet.open(connection.send, write)
    assert outlet.sooner(b"a")
    await outlet.close()
    assert not outlet.sooner(b"too late") and sooner == [b"a"] and not connection.sent


async def test_what_breaks_in_it_is_told_to_who_settles() -> None:
    connection, outlet = Connection(), Outlet()
    outlet.open(connection.send)
    connection.room.clear()
    outlet.write(b"a")
    connection.broken = True
    connection.room.set()
    with pytest.raises(OSError, match="broke"):
        await outlet.settle()


async def test_a_stream_s_ways_keep_the_order() -> None:
    """What is written while its connection is full comes before what its source gives out then."""
    connection, outlet, go_on = Connection(), Outlet(), asyncio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await go_on.wait()
        yield b"last"

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()

    stream = EventStream(await Started.of(source(), outlet))
    answering = asyncio.create_task(stream({"type": "http"}, receive, connection.send))
    while not outlet.clear:
        await asyncio.sleep(0)
    outlet.write(b"second")
    connection.room.clear()
    outlet.write(b"third")
    go_on.set()
    await asyncio.sleep(0.01)
    connection.room.set()
    await answering
    assert connection.sent == [b"", b"first", b"second", b"third", b"last", b""] and not outlet.clear
