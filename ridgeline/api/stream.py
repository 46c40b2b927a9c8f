"""HTTP bodies that outlive a call: server-sent events, and work that ends when its client goes away.

Knows nothing of what an event means.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ridgeline.api.outlet import Outlet, Write

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
RESUME = "x-ridgeline-stream"  # asked for by "keep", answered by a stream's name


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


def event(body: bytes, name: str = "") -> bytes:
    """One event; body is a JSON text on one line. name: its type, for dialects that have some."""
    return (b"event: %b\n" % name.encode() if name else b"") + b"data: " + body + b"\n\n"


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises ClientGone when the client leaves first.

    receive: the ASGI callable of a request whose body has been read, so that its next message is the
    disconnect.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _stop(task, gone)


class Started(Generic[T]):
    """An async generator that has been run up to its first item, so that an error there comes before any
    header. outlet: a way past the generator, for whoever opens it.
    """

    def __init__(self, first: T, rest: AsyncGenerator[T, None], outlet: Outlet | None = None) -> None:
        self.first = first
        self.rest = rest
        self.outlet = outlet or Outlet()

    @classmethod
    async def of(cls, source: AsyncGenerator[T, None], outlet: Outlet | None = None) -> "Started[T]":
        """Run `source` to its first item; what it raises before that comes out here."""
        return cls(await anext(source), source, outlet)

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        yield self.first
        async for item in self.rest:
            yield item

    async def aclose(self) -> None:
        await self.rest.aclose()


class EventStream(Response):
    """A 200 whose body is the events, each sent as it comes; closes their source however the stream ends.

    scope["send"]: past the layers around the app, which wait for an answer's start alone. scope["write"]:
    past ASGI too, Outlet's `sooner`.
    """

    media_type = "text/event-stream"

    def __init__(self, events: Started[bytes], name: str | None = None) -> None:
        """name: by which the stream can be read on (`resume`)."""
        named = {} if name is None else {RESUME: name}
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **named})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await until_gone(receive, self._pump(scope.get("send", send), scope.get("write")))
            except ClientGone:
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Send, write: Write | None) -> None:
        outlet = self._events.outlet
        await send({"type": "http.response.body", "body": self._events.first, "more_body": True})
        outlet.open(send, write)
        try:
            async for body in self._events.rest:
                await outlet.settle()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await outlet.settle()
        finally:
            await outlet.close()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(*tasks: "asyncio.Future[Any]") -> None:
    waiting: Sequence[asyncio.Future[Any]] = [task for task in tasks if not task.done()]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
