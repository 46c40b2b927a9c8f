"""The short way of a stream's bytes: written where the news of their token came in, past the tasks that wait
in between, none of which need be woken then.

Knows ASGI's send, maybe a way past that, and nothing of what it writes.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any

from starlette.types import Send

Write = Callable[[bytes], bool]  # a part of a body: True when it is on its way, else it is the caller's still


class Outlet:
    """Closed until an answer's head and all before have been sent, and again while a connection is full.

    clear: whether what is written now goes out now. sooner: the way past `send`, while it is clear; what it
    will not have is to be written.
    """

    __slots__ = ("_rest", "_send", "clear", "sooner")

    def __init__(self) -> None:
        self.clear = False
        self.sooner: Write = _nowhere
        self._send: Send | None = None
        self._rest: asyncio.Task[None] | None = None

    def open(self, send: Send, sooner: Write | None = None) -> None:
        """From now on `write` sends by `send`."""
        self._send, self.sooner = send, sooner or _nowhere
        self.clear = True

    def write(self, body: bytes) -> None:
        """Send a part of the body, while it is clear. Where the connection is full, a task does the rest."""
        assert self.clear and self._send is not None
        sending: Any = self._send({"type": "http.response.body", "body": body, "more_body": True})
        try:
            waited = sending.send(None)
        except StopIteration:
            return
        self.clear = False
        self._rest = asyncio.ensure_future(_go_on(sending, waited))

    async def settle(self) -> None:
        """Wait until all that was written is sent. Raises what `send` raised."""
        if self._rest is not None:
            await self._rest
            self._rest, self.clear = None, self._send is not None

    async def close(self) -> None:
        """Nothing goes this way any more."""
        self.clear = False
        self._send, self.sooner, rest, self._rest = None, _nowhere, self._rest, None
        if rest is not None:
            rest.cancel()
            await asyncio.gather(rest, return_exceptions=True)


def _nowhere(part: bytes) -> bool:
    """The way past `send` where there is none."""
    return False


async def _go_on(begun: Coroutine[Any, Any, None], waited: Any) -> None:
    await _rest(begun, waited)


@coroutine
def _rest(begun: Coroutine[Any, Any, None], waited: Any) -> Generator[Any, None, None]:
    """What is left of a coroutine that was begun outside a task, and waits for the future `waited`."""
    try:
        while True:
            yield waited
            waited = begun.send(None)
    except StopIteration:
        return
    finally:
        begun.close()
