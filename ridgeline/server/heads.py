"""Connections whose request never comes: cut off, so that nobody holds all that the process may have open.
Those whose bytes are no HTTP are told so as everybody is told.

Bodies have a limit of their own (`app._body`), and connections between two requests have uvicorn's.
"""

import asyncio

from ridgeline.api.answers import to_json
from ridgeline.api.errors import error_body
from ridgeline.base.errors import RequestError
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

    def send_400_response(self, msg: str) -> None:
        body = to_json(error_body(RequestError(msg, code="invalid_http")))
        head = (b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n")
        self.transport.write(head % len(body) + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._late = self.loop.call_later(self.head_s, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
