"""Events of a stream, kept while others read them from a place of their own.

Knows neither who may read them nor how much may be kept.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from itertools import islice


def split(body: bytes) -> list[bytes]:
    """The events of a part of a stream, each whole."""
    return [one + b"\n\n" for one in body.split(b"\n\n")[:-1]]


class EventLog:
    """Events as they came; the oldest `first` had to make room. over: no more will come."""

    def __init__(self) -> None:
        self.first = self.num_bytes = 0
        self.over = False
        self._events: deque[bytes] = deque()
        self._news = asyncio.Event()

    @property
    def end(self) -> int:
        """How many there were."""
        return self.first + len(self._events)

    def add(self, event: bytes) -> int:
        """Its bytes."""
        self._events.append(event)
        self.num_bytes += len(event)
        self._wake()
        return len(event)

    def close(self) -> None:
        """No more will come."""
        self.over = True
        self._wake()

    def halve(self) -> int:
        """Let the older half go: its bytes."""
        before = self.num_bytes
        for _ in range(-(-len(self._events) // 2)):
            self.num_bytes -= len(self._events.popleft())
            self.first += 1
        return before - self.num_bytes

    def forget(self) -> None:
        """Let all go, and end; nobody reads on."""
        self.first, self.num_bytes = self.end + 1, 0
        self._events.clear()
        self.close()

    async def read(self, place: int) -> AsyncGenerator[bytes, None]:
        """The events after the first `place`; all that wait at once. LookupError where they are not, or not
        yet, there."""
        while True:
            if not self.first <= place <= self.end:
                raise LookupError(place)
            if place < self.end:
                waiting = b"".join(islice(self._events, place - self.first, None))
                place = self.end
                yield waiting
            elif self.over:
                return
            else:
                await self._news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
