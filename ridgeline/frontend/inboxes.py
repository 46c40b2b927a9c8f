"""The inboxes of all requests that are open, and the way of what an engine says of them into these.

For one event loop. Knows no socket.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from ridgeline.base.errors import RequestError
from ridgeline.frontend.inbox import AtOnce, Inbox
from ridgeline.frontend.protocol import News, Tokens

TOLD_TOGETHER = 32  # until others have their turn


class Inboxes:
    """By request, and by the routes of their choices. give_up: ends a request whose reader is too slow."""

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self._give_up = give_up
        self._by_request: dict[str, Inbox] = {}
        self._by_route: dict[int, tuple[Inbox, int]] = {}  # with the choice
        self._num_routes = 0  # ever given
        self._num_told = 0

    def __len__(self) -> int:
        return len(self._by_request)

    def open(self, request_id: str, num_choices: int, at_once: AtOnce | None) -> Inbox:
        """That of a new request. at_once: see Inbox."""
        assert request_id not in self._by_request, "ids are the caller's to keep apart"
        inbox = Inbox(request_id, range(self._num_routes, self._num_routes + num_choices), at_once)
        self._num_routes += num_choices
        self._by_request[request_id] = inbox
        self._by_route |= {route: (inbox, choice) for choice, route in enumerate(inbox.routes)}
        return inbox

    def close(self, inbox: Inbox) -> None:
        """Nobody reads it any more."""
        del self._by_request[inbox.request_id]
        for route in inbox.routes:
            del self._by_route[route]

    def fail(self, request_id: str, error: Exception) -> None:
        """One reader hears of an error, if there is one."""
        if (inbox := self._by_request.get(request_id)) is not None:
            inbox.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Every reader does."""
        for inbox in self._by_request.values():
            inbox.fail(error)

    async def take(self, steps: Sequence[Sequence[News | Tokens]], now_s: float) -> None:
        """What came at now_s. The news of one step go out as they are read; when it is several, all are put
        in first, so that a choice's go out together. Others have their turn in between: whatever comes in,
        nobody starves, and what was written first is sent before the last is written. What can wait until
        all are sent does."""
        handed: list[Inbox] = []
        if len(steps) == 1:
            for message in steps[0]:
                if isinstance(message, Tokens):
                    await self._hand_on(message, now_s, handed)
                elif (inbox := self._by_request.get(message.id)) is not None:
                    self._put(inbox, message)
                    await self._tell(inbox, now_s)
        else:
            for inbox in {inbox.request_id: inbox for inbox in self._put_all(chain(*steps))}.values():
                await self._tell(inbox, now_s)
        await asyncio.sleep(0)
        for inbox in handed:
            inbox.settle()

    async def _hand_on(self, message: Tokens, now_s: float, handed: list[Inbox]) -> None:
        by_route = self._by_route
        for number, (route, token) in enumerate(zip(message.routes, message.tokens, strict=True), 1):
            if (found := by_route.get(route)) is not None:
                inbox, choice = found
                tokens = (token,)
                if inbox.hand(choice, tokens, now_s):
                    handed.append(inbox)
                else:
                    self._put(inbox, News(id=inbox.request_id, choice=choice, new_tokens=tokens))
                    inbox.tell(now_s)
            if number % TOLD_TOGETHER == 0:
                await asyncio.sleep(0)

    async def _tell(self, inbox: Inbox, now_s: float) -> None:
        inbox.tell(now_s)
        self._num_told += 1
        if self._num_told % TOLD_TOGETHER == 0:
            await asyncio.sleep(0)

    def _put_all(self, messages: Iterable[News | Tokens]) -> Iterator[Inbox]:
        for message in messages:
            if isinstance(message, News):
                if (inbox := self._by_request.get(message.id)) is not None:
                    yield self._put(inbox, message)
                continue
            for route, token in zip(message.routes, message.tokens, strict=True):
                if (found := self._by_route.get(route)) is not None:
                    inbox, choice = found
                    yield self._put(inbox, News(id=inbox.request_id, choice=choice, new_tokens=(token,)))

    def _put(self, inbox: Inbox, news: News) -> Inbox:
        inbox.put(news)
        if inbox.full:
            inbox.fail(RequestError("the reader is too far behind", code="reader_too_slow", status=408))
            self._give_up(inbox.request_id)
        return inbox
