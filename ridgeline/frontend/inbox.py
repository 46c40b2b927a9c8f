"""What waits for one reader: bounded, and taken all at once. For one event loop."""

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")
MOST_BEHIND = 4096  # items that wait; a reader further behind is given up


class Inbox(Generic[T]):
    """Items in the order in which they were put, then perhaps a failure, which is the last."""

    def __init__(self) -> None:
        self._items: list[T | Exception] = []
        self._waiter: asyncio.Future[None] | None = None
        self._over = False

    @property
    def full(self) -> bool:
        return len(self._items) >= MOST_BEHIND

    def put(self, item: T) -> None:
        """Dropped after a failure."""
        if not self._over:
            self._add(item)

    def fail(self, error: Exception) -> None:
        """The reader hears of it after what waits."""
        if not self._over:
            self._over = True
            self._add(error)

    def _add(self, item: T | Exception) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():  # it is where a reader is being cancelled
            self._waiter.set_result(None)

    async def take(self) -> list[T | Exception]:
        """All that waits; waits for the first."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        items, self._items = self._items, []
        return items
