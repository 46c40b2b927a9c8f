"""uvicorn's HTTP protocol with a short way out for the parts of a stream.

`RequestResponseCycle.send` costs more for a part than all that we do for a token: a message as a dict, a
coroutine, and every question about an answer once more. A part in the middle of a chunked body needs three of
these and the frame of a chunk (RFC 9112, section 7.1).
"""

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class ShortProtocol(HttpToolsProtocol):
    """Gives each request's scope a "write", see `short_way`."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:  # not one that is to be a websocket
            self.scope["write"] = short_way(self.cycle)  # type: ignore[typeddict-unknown-key]


def short_way(cycle: RequestResponseCycle) -> Callable[[bytes], bool]:
    """Sends a part between an answer's head and its last part, as `cycle.send` would; False: not now, and not
    this way, because the connection is full or gone or the body is not in chunks."""
    flow, write = cycle.flow, cycle.transport.write

    def short(part: bytes) -> bool:
        if flow.write_paused or cycle.disconnected or not cycle.chunked_encoding or not part:
            return False
        write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    return short
