"""Tokens find their choice by its route; whoever is behind gets several steps as one piece."""

import asyncio
from collections.abc import Sequence

import pytest

from ridgeline.base.errors import RequestError
from ridgeline.frontend.inbox import MOST_BEHIND
from ridgeline.frontend.inboxes import TOLD_TOGETHER, Inboxes
from ridgeline.frontend.protocol import News, Tokens

Had = list[tuple[int, list[int]]]


class Noting:
    """Takes all that it is offered, and notes it; and how much of it had come when it settled."""

    def __init__(self, had: Had) -> None:
        self.had, self.settled = had, list[int]()

    def take(self, choice: int, tokens: Sequence[int], now_s: float) -> bool:
        self.had.append((choice, list(tokens)))
        return True

    def settle(self) -> None:
        self.settled.append(len(self.had))


def test_tokens_go_by_their_routes() -> None:
    """To the right choice of the right request; one that was closed is nobody's, and never comes again."""

    async def work() -> None:
        inboxes, had = Inboxes(lambda request_id: None), Had()
        one = inboxes.open("one", 2, Noting(had))
        two = inboxes.open("two", 1, None)
        readers = [asyncio.create_task(inbox.take()) for inbox in (one, two)]
        await asyncio.sleep(0)
        await inboxes.take([[Tokens(routes=[*one.routes, *two.routes], tokens=[5, 6, 7])]], 1.0)
        assert had == [(0, [5]), (1, [6])] and await readers[1] == [News(id="two", new_tokens=(7,))]
        inboxes.close(two)
        three = inboxes.open("three", 1, None)
        assert not set(three.routes) & {*one.routes, *two.routes} and len(inboxes) == 2
        await inboxes.take([[Tokens(routes=[*two.routes, one.routes[0]], tokens=[8, 9])]], 2.0)
        assert had[2:] == [(0, [9])]
        readers[0].cancel()

    asyncio.run(work())


def test_several_steps_are_one_piece() -> None:
    """And news keep their order with tokens, whichever way either comes."""

    async def work() -> None:
        inboxes, had = Inboxes(lambda request_id: None), Had()
        inbox = inboxes.open("r", 1, Noting(had))
        reader = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        first = News(id="r", new_tokens=[1], num_prompt=4, num_cached=2, times_s={"first_token": 1.0})
        await inboxes.take([[first], [Tokens(routes=[*inbox.routes], tokens=[2])]], 1.0)
        (both,) = await reader
        assert isinstance(both, News) and list(both.new_tokens) == [1, 2] and not had
        assert (both.num_prompt, both.num_cached, both.times_s) == (4, 2, {"first_token": 1.0})
        reader = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        await inboxes.take([[Tokens(routes=[*inbox.routes], tokens=[token])] for token in (3, 4, 5)], 2.0)
        assert had == [(0, [3, 4, 5])]
        reader.cancel()

    asyncio.run(work())


def test_others_have_their_turn() -> None:
    async def work() -> None:
        inboxes, seen, had = Inboxes(lambda request_id: None), list[int](), Had()
        takers = [Noting(had) for _ in range(3 * TOLD_TOGETHER)]
        opened = [inboxes.open(str(number), 1, takers[number]) for number in range(3 * TOLD_TOGETHER)]
        readers = [asyncio.create_task(inbox.take()) for inbox in opened]
        await asyncio.sleep(0)
        other = asyncio.get_running_loop().call_soon

        def turn() -> None:
            seen.append(len(had))
            if len(had) < len(opened):
                other(turn)

        other(turn)
        routes = [route for inbox in opened for route in inbox.routes]
        await inboxes.take([[Tokens(routes=routes, tokens=[1] * len(routes))]], 0.0)
        assert set(seen) >= {TOLD_TOGETHER, 2 * TOLD_TOGETHER}
        assert {tuple(taker.settled) for taker in takers} == {(len(opened),)}, "once all are out"
        for reader in readers:
            reader.cancel()

    asyncio.run(work())


def test_a_reader_that_is_far_behind_is_given_up() -> None:
    """What waits for it is bounded: it gets what was kept, then an error, and its request is ended once."""

    async def work() -> None:
        ended: list[str] = []
        inboxes = Inboxes(ended.append)
        inbox = inboxes.open("slow", 1, None)
        for _ in range(MOST_BEHIND + 3):
            await inboxes.take([[Tokens(routes=[*inbox.routes], tokens=[5])]], 0.0)
        kept, error = await inbox.take()
        assert isinstance(kept, News) and len(kept.new_tokens) == MOST_BEHIND
        assert isinstance(error, RequestError) and ended == ["slow"]
        with pytest.raises(AssertionError):
            inboxes.open("slow", 1, None)

    asyncio.run(work())
