"""One HTTP/1.1 exchange, on a connection of its own, with the time of every piece of its body.

Written on asyncio and httptools because a general client costs more for each chunk than some engines do for a
token (docs/LOG.md has the numbers). Knows nothing of what is asked or answered.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

import httptools

from ridgeline.base.errors import ConfigError

_MOST_ERROR_BYTES = 1 << 14
Sink = Callable[[float, bytes], None]


class Failure(Exception):
    """Why a request has no answer. kind: what it is counted under; detail: for people."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is. ip: of host, once `resolve` has looked it up. base: what its paths begin with, "/v1"
    included. tls: what is needed to speak https, None for http."""

    host: str
    ip: str
    port: int
    base: str
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, url: str) -> "Address":
        """Of "http://host:port", with or without "/v1". ConfigError when it is no such address."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--url {url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url}: write it like http://localhost:8000")
        path, tls = parts.path.rstrip("/"), parts.scheme == "https"
        return cls(host=parts.hostname, ip=parts.hostname, port=port or (443 if tls else 80),
                   base=path if path.endswith("/v1") else f"{path}/v1",
                   tls=ssl.create_default_context() if tls else None)

    async def resolve(self) -> "Address":
        """With the first of its addresses that takes a connection: a look-up for each request would cost time
        that is not the server's. Raises Failure: connect."""
        try:
            _, writer = await asyncio.open_connection(self.host, self.port)
        except OSError as error:
            raise Failure("connect", str(error)) from None
        writer.close()
        return replace(self, ip=writer.get_extra_info("peername")[0])


def request_bytes(address: Address, method: str, path: str, body: bytes,
                  headers: Mapping[str, str]) -> bytes:
    """A whole request, ready to be sent."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [f"{method} {address.base}{path} HTTP/1.1", f"Host: {host}:{address.port}",
             "Connection: close", f"Content-Length: {len(body)}", "Content-Type: application/json",
             *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def exchange(address: Address, request: bytes, sink: Sink, timeout_s: float) -> None:
    """Send, and hand the body of a 200 to `sink` piece by piece, each with the time it came at.

    Raises Failure: connect, timeout, dropped, garbage, or "http" and another status; what `sink` raises.
    """
    loop = asyncio.get_running_loop()
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            try:
                transport, protocol = await loop.create_connection(
                    lambda: _Exchange(request, sink), address.ip, address.port, ssl=address.tls,
                    server_hostname=address.host if address.tls else None)
            except (OSError, ssl.SSLError) as error:
                raise Failure("connect", str(error)) from None
            await protocol.done
    except TimeoutError:
        raise Failure("timeout", f"not complete after {timeout_s:g} s") from None
    finally:
        if transport is not None:
            cast(asyncio.Transport, transport).abort()


class _Exchange(asyncio.Protocol):
    """Both the connection's protocol and the callbacks of the parser of its answer."""

    def __init__(self, request: bytes, sink: Sink) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._sink = sink
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._delimited = False  # the answer says where it ends; else the end of the connection is its end
        self._status = 0
        self._refusal = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        if self.done.done():
            return
        try:
            self._parser.feed_data(data)
        except Failure as failure:
            self._end(failure)
        except httptools.HttpParserError as error:
            # an exception of a callback comes wrapped
            cause = error.__context__
            self._end(cause if isinstance(cause, Failure) else Failure("garbage", f"not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._status and not self._delimited and exc is None:
            self.on_message_complete()
        else:
            self._end(Failure("dropped", str(exc or "the connection was closed before the answer's end")))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._delimited = True

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status == 200:
            self._sink(self._now, body)
        elif len(self._refusal) < _MOST_ERROR_BYTES:
            self._refusal += body

    def on_message_complete(self) -> None:
        if self._status == 200:
            self._end(None)
        else:
            self._end(Failure(f"http {self._status}", self._refusal.decode("utf-8", "replace").strip()))

    def _end(self, failure: Failure | None) -> None:
        if self.done.done():
            return
        if failure is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(failure)
