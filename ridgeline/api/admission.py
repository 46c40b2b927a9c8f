"""Who is let in: the count of requests at work, and the door that closes before a shutdown."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ridgeline.base.errors import RequestError


class Admission:
    """Counts requests at work. Once closed, every new one is refused with 503; so is it while paused."""

    def __init__(self) -> None:
        self.num_active = 0
        self._pause: str | None = None
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def shut(self) -> str | None:
        """Why nobody is let in now, or None."""
        return "shutting down" if self._closed else self._pause

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Hold a place while a request is at work. Raises RequestError, status 503, when the door is closed.
        """
        if self._closed:
            raise RequestError(
                "the server is shutting down; try another one", code="shutting_down", status=503
            )
        if self._pause is not None:
            raise RequestError(f"{self._pause}; try again soon", code="sleeping", status=503)
        self.num_active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_active -= 1
            if not self.num_active:
                self._idle.set()

    def close(self) -> None:
        """Let nobody else in."""
        self._closed = True

    def pause(self, why: str) -> None:
        """Let nobody in until `resume`."""
        self._pause = why

    def resume(self) -> None:
        self._pause = None

    async def drained(self, timeout_s: float) -> bool:
        """Wait until nothing is at work; False when that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
