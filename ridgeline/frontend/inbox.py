"""The news that wait for one request's reader: bounded, and taken all at once, so that a reader who is behind
catches up at the price of one piece. For one event loop."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from ridgeline.frontend.protocol import News

MOST_BEHIND = 4096  # news that wait; a reader further behind is given up
Item = News | Exception
AtOnce = Callable[[News], bool]


class Inbox:
    """News in the order in which they were put, then perhaps a failure, which is the last.

    at_once: offered news that closes no choice, while the reader waits and all before was taken; True: it
    has it, and the reader sleeps on. What it raises, the reader hears as a failure.
    """

    def __init__(self, at_once: AtOnce | None = None) -> None:
        self._at_once = at_once
        self._items: list[Item] = []
        self._waiter: asyncio.Future[None] | None = None
        self._over = False

    @property
    def full(self) -> bool:
        return len(self._items) >= MOST_BEHIND

    def put(self, news: News) -> None:
        """Dropped after a failure."""
        if not self._over:
            self._items.append(news)

    def fail(self, error: Exception) -> None:
        """The reader hears of it after what waits."""
        if not self._over:
            self._over = True
            self._items.append(error)
            self.tell()

    def tell(self) -> None:
        """After `put`: the reader, or at_once in its place, takes what waits."""
        waiter = self._waiter
        if waiter is None or waiter.done() or not self._items:  # done: a reader that is being cancelled
            return
        if self._at_once is not None:
            self._offer(self._at_once)
        if self._items:
            waiter.set_result(None)

    def _offer(self, at_once: AtOnce) -> None:
        items = self._items if len(self._items) == 1 else _by_choice(self._items)
        num_taken = 0
        try:
            for item in items:
                if isinstance(item, Exception) or item.finish is not None or not at_once(item):
                    break
                num_taken += 1
            self._items = items[num_taken:]
        except Exception as error:
            self._items, self._over = [error], True

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
