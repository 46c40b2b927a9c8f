"""Connections whose request never comes, or whose head never ends: cut off, so that nobody holds all that the
process may have open, or all of its memory. Those whose bytes are no HTTP are told so as everybody is told.

Bodies have limits of their own (`app._body`), and connections between two requests have uvicorn's.
"""

import asyncio
from http import HTTPStatus

from ridgeline.api.answers import to_json
from ridgeline.api.errors import error_body
from ridgeline.base.errors import RequestError
from ridgeline.server.short import ShortProtocol

HEAD_S = 30.0  # from a connection's or a request's first byte to the end of its head
HEAD_BYTES = 64 * 2**10  # of a head, and of what stands behind a body or between its chunks
LINGER_S = 1.0  # behind the last words: a close before all that comes is read would take them along


class HeadsProtocol(ShortProtocol):
    """The short protocol, with an end to waiting for a head, in seconds and in bytes."""

    head_s = HEAD_S
    _late: asyncio.TimerHandle | None = None
    _beside = 0  # bytes since a head or a piece of a body was complete
    _refused = False  # what still comes is dropped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._beside += len(data)
        super().data_received(data)
        if self._beside > HEAD_BYTES and not self._refused and not self.transport.is_closing():
            self._refuse(RequestError(f"a request's head is longer than {HEAD_BYTES} bytes", status=431,
                                      code="head_too_large"))

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        super().on_body(body)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._late is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._stop()
        self._beside = 0
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(RequestError(msg, code="invalid_http"))

    def _refuse(self, error: RequestError) -> None:
        """The connection's last words, unless they would stand within an answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        body, reason = to_json(error_body(error)), HTTPStatus(error.status).phrase.encode()
        head = (b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n")
        self.transport.write(head % (error.status, reason, len(body)) + body)
        self._refused = True
        self._stop()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._late = self.loop.call_later(LINGER_S, self.transport.close)

    def _await_head(self) -> None:
        self._late = self.loop.call_later(self.head_s, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
