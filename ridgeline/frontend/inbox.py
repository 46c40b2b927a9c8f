"""The news that wait for one request's reader: bounded, and taken all at once, so that a reader who is behind
catches up at the price of one piece. For one event loop."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from ridgeline.frontend.protocol import News

MOST_BEHIND = 4096  # news that wait; a reader further behind is given up
Item = News | Exception


class AtOnce(Protocol):
    """Has tokens of a request in the place of its reader."""

    def take(self, choice: int, tokens: Sequence[int], now_s: float) -> bool:
        """Tokens of a choice that came at now_s; False: they are not taken."""
        ...

    def settle(self) -> None:
        """Do what `take` put off, for all that it took since: nobody waits for that."""
        ...


class Inbox:
    """News in the order in which they were put, then perhaps a failure, which is the last.

    request_id, routes: whose, and the routes of its choices. at_once: offered tokens that come alone while
    the reader waits and all before was taken; what it takes, the reader sleeps through. What it raises, the
    reader hears as a failure.
    """

    __slots__ = ("_at_once", "_is_clear", "_items", "_over", "_waiter", "request_id", "routes")

    def __init__(self, request_id: str, routes: Sequence[int], at_once: AtOnce | None = None) -> None:
        self.request_id, self.routes = request_id, routes
        self._at_once = at_once
        self._items: list[Item] = []
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self._is_clear = False  # at_once may have what comes: the reader waits, and nothing waits for it

    @property
    def full(self) -> bool:
        return len(self._items) >= MOST_BEHIND and not self._over

    def hand(self, choice: int, tokens: Sequence[int], now_s: float) -> bool:
        """Offer tokens of a choice to at_once, past everything here; `settle` is owed for them then. False:
        they were not taken."""
        if not self._is_clear:
            return False
        try:
            return self._at_once.take(choice, tokens, now_s)  # type: ignore[union-attr]
        except Exception as error:
            self.fail(error)
            return True

    def settle(self) -> None:
        """After `hand`."""
        if self._at_once is not None:
            try:
                self._at_once.settle()
            except Exception as error:
                self.fail(error)

    def put(self, news: News) -> None:
        """Dropped after a failure."""
        if not self._over:
            self._items.append(news)
            self._is_clear = False

    def fail(self, error: Exception) -> None:
        """The reader hears of it after what waits."""
        if not self._over:
            self._over = True
            self._items.append(error)
            self._is_clear = False
            self._wake()

    def tell(self, now_s: float) -> None:
        """After `put`: the reader, or at_once in its place, takes what waits."""
        if not self._is_awaited:
            return
        items, self._items = self._items, []
        rest = items if len(items) == 1 else _by_choice(items)
        self._is_clear = self._at_once is not None
        for number, item in enumerate(rest):
            if not (isinstance(item, News) and item.is_bare
                    and self.hand(item.choice, item.new_tokens, now_s)):
                self._items = [*rest[number:], *self._items]  # what breaks in it comes last
                self._is_clear = False
                break
        self.settle()
        self._wake()

    @property
    def _is_awaited(self) -> bool:
        return self._waiter is not None and not self._waiter.done()  # done: a reader that is being cancelled

    def _wake(self) -> None:
        if self._items and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> Sequence[Item]:
        """All that waits, one for each choice; waits for the first."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            self._is_clear = self._at_once is not None
            try:
                await self._waiter
            finally:
                self._waiter, self._is_clear = None, False
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
    whole = next((one for one in reversed(news) if one.num_prompt), last)
    return msgspec.structs.replace(
        last,
        num_prompt=whole.num_prompt,
        num_cached=whole.num_cached,
        new_tokens=[token for one in news for token in one.new_tokens],
        logprobs=[entry for one in news for entry in one.logprobs],
        prompt_logprobs=[entry for one in news for entry in one.prompt_logprobs],
        pooled=b"".join(one.pooled for one in news),
        times_s=next((one.times_s for one in reversed(news) if one.times_s), None),
    )
