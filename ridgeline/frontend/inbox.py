"""The news that wait for one request's reader: bounded, and taken all at once, so that a reader who is behind
catches up at the price of one piece. For one event loop."""

import asyncio
from collections.abc import Sequence

import msgspec

from ridgeline.frontend.protocol import News

MOST_BEHIND = 4096  # news that wait; a reader further behind is given up
Item = News | Exception


class Inbox:
    """News in the order in which they were put, then perhaps a failure, which is the last."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._waiter: asyncio.Future[None] | None = None
        self._over = False

    @property
    def full(self) -> bool:
        return len(self._items) >= MOST_BEHIND

    def put(self, news: News) -> None:
        """Dropped after a failure."""
        if not self._over:
            self._add(news)

    def fail(self, error: Exception) -> None:
        """The reader hears of it after what waits."""
        if not self._over:
            self._over = True
            self._add(error)

    def _add(self, item: Item) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():  # it is where a reader is being cancelled
            self._waiter.set_result(None)

    async def take(self) -> Sequence[Item]:
        """All that waits, one for each choice; waits for the first."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        items, self._items = self._items, []
        return items if len(items) == 1 else _by_choice(items)


def _by_choice(items: list[Item]) -> list[Item]:
    by_choice: dict[int, list[News]] = {}
    for item in items:
        if isinstance(item, News):
            by_choice.setdefault(item.choice, []).append(item)
    return [*map(joined, by_choice.values()), *(item for item in items if isinstance(item, Exception))]


def joined(news: Sequence[News]) -> News:
    """One choice's news of several steps as those of one."""
    last = news[-1]
    if len(news) == 1:
        return last
    return msgspec.structs.replace(
        last,
        new_tokens=[token for one in news for token in one.new_tokens],
        logprobs=[entry for one in news for entry in one.logprobs],
        prompt_logprobs=[entry for one in news for entry in one.prompt_logprobs],
        pooled=b"".join(one.pooled for one in news),
        times_s=next((one.times_s for one in reversed(news) if one.times_s), None),
    )
