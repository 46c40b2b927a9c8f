"""Streams that outlive their connection: the request goes on, its events are numbered and kept for a while,
and whoever made it reads on from where the connection broke.

All of it is bounded: bytes, streams, requests of a key that nobody reads, seconds without a reader.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ridgeline.account.caller import Caller
from ridgeline.api.answers import to_json
from ridgeline.api.errors import error_body
from ridgeline.api.events import EventLog, split
from ridgeline.api.stream import Started, event
from ridgeline.base.errors import RequestError

KEEP_S = 120.0  # without a reader
MOST_BYTES = 64 * 2**20
MOST_STREAMS = 1024
MOST_AWAY = 16  # of a key, without a reader and not over


class _Stream(EventLog):
    """The events of one, with their numbers from 1."""

    def __init__(self, tenant: str) -> None:
        super().__init__()
        self.tenant = tenant
        self.num_readers = 0
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def add(self, event: bytes) -> int:
        return super().add(b"id: %d\n%b" % (self.end + 1, event))


class Streams:
    """Those that are kept, by a name that cannot be guessed; a key finds its own alone. num_bytes: of all."""

    def __init__(
        self, *, keep_s: float = KEEP_S, most_bytes: int = MOST_BYTES, most_streams: int = MOST_STREAMS,
        most_away: int = MOST_AWAY,
    ) -> None:  # fmt: skip
        self._keep_s, self._most_bytes = keep_s, most_bytes
        self._most_streams, self._most_away = most_streams, most_away
        self._kept: dict[str, _Stream] = {}  # eldest first
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    async def keep(self, caller: Caller, events: Started[bytes]) -> tuple[str, Started[bytes]]:
        """(name, the same events numbered): from now on they come whether anybody reads them or not. Raises
        RequestError, status 429, when as many streams as may be kept are being read."""
        if len(self._kept) >= self._most_streams:
            unread = next((name for name, one in self._kept.items() if not one.num_readers), None)
            if unread is None:
                await events.aclose()
                raise RequestError("too many resumable streams", code="too_many_streams", status=429)
            self._drop(unread)
        name, stream = uuid.uuid4().hex, _Stream(caller.tenant)
        self._kept[name] = stream
        stream.task = asyncio.create_task(self._fill(stream, events))
        return name, await Started.of(self._read(name, stream, 0))

    async def resume(self, caller: Caller, name: str, place: int) -> Started[bytes]:
        """The events after the first `place`. Raises RequestError: 404 for a stream that is not this caller's
        or not kept any more, 410 when these events are not, or not yet, there."""
        stream = self._find(caller, name)
        try:
            return await Started.of(self._read(name, stream, place))
        except StopAsyncIteration:
            raise RequestError(
                "from: this stream has ended before", param="from", code="stream_ended", status=410
            ) from None

    def end(self, caller: Caller, name: str) -> None:
        """End the request and forget its events. Raises RequestError, 404, as `resume` does."""
        self._find(caller, name)
        self._drop(name)

    def _find(self, caller: Caller, name: str) -> _Stream:
        stream = self._kept.get(name)
        if stream is None or stream.tenant != caller.tenant:
            raise RequestError(
                f"there is no stream {name!r:.100} of this API key; it may be too old, or had to make room",
                code="stream_not_found", status=404,
            )  # fmt: skip
        return stream

    async def _fill(self, stream: _Stream, events: Started[bytes]) -> None:
        try:
            async with aclosing(events):
                async for body in events:
                    self.num_bytes += sum(stream.add(one) for one in split(body))
                    while self.num_bytes > self._most_bytes:
                        largest = max(self._kept.values(), key=lambda one: one.num_bytes)
                        self.num_bytes -= largest.halve()
        finally:
            stream.close()

    async def _read(self, name: str, stream: _Stream, place: int) -> AsyncGenerator[bytes, None]:
        stream.num_readers += 1
        if stream.timer is not None:
            stream.timer.cancel()
        begun = False
        try:
            async with aclosing(stream.read(place)) as events:
                async for body in events:
                    begun = True
                    yield body
        except LookupError:
            gone = RequestError(
                f"from: events {stream.first + 1} to {stream.end} of this stream are there", param="from",
                code="stream_gone", status=410,
            )  # fmt: skip
            if not begun:
                raise gone from None
            yield event(to_json(error_body(gone)))
        finally:
            stream.num_readers -= 1
            if not stream.num_readers and name in self._kept:
                stream.timer = asyncio.get_running_loop().call_later(self._keep_s, self._drop, name)
                self._bound_away(stream.tenant)

    def _bound_away(self, tenant: str) -> None:
        """A key's requests that go on unread are only so many: else its limits could be passed by."""
        away = [name for name, one in self._kept.items()
                if one.tenant == tenant and not one.num_readers and not one.over]
        for name in away[:max(0, len(away) - self._most_away)]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        stream = self._kept.pop(name)
        self.num_bytes -= stream.num_bytes
        stream.num_bytes = 0
        if stream.timer is not None:
            stream.timer.cancel()
        if stream.task is not None:
            stream.task.cancel()
