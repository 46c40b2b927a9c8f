"""Connections whose request never comes: cut off, so that nobody holds all that the process may have open.

Bodies have a limit of their own (`app._body`), and connections between two requests have uvicorn's.
"""

import asyncio

from ridgeline.server.short import ShortProtocol

HEAD_S = 30.0  # from a connection's or a request's first byte to the end of its head


class HeadsProtocol(ShortProtocol):
    """The short protocol, with an end to waiting for a head."""

    head_s = HEAD_S
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._late is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._stop()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._late = self.loop.call_later(self.head_s, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
