"""What waits for a reader comes in order and all at once; a reader that goes away breaks nobody."""

import asyncio

from ridgeline.frontend.inbox import MOST_BEHIND, Inbox


def test_in_order_at_once_and_nothing_after_a_failure() -> None:
    async def work() -> None:
        inbox: Inbox[int] = Inbox()
        reader = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        inbox.put(1)
        inbox.put(2)
        assert await reader == [1, 2]
        failure = ValueError("over")
        inbox.put(3)
        inbox.fail(failure)
        inbox.put(4)
        inbox.fail(ValueError("again"))
        assert await inbox.take() == [3, failure]

    asyncio.run(work())


def test_a_reader_that_is_being_cancelled_is_not_woken() -> None:
    async def work() -> None:
        inbox: Inbox[int] = Inbox()
        reader = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        reader.cancel()
        inbox.put(1)
        await asyncio.gather(reader, return_exceptions=True)
        assert reader.cancelled() and await inbox.take() == [1]

    asyncio.run(work())


def test_it_says_when_it_is_full() -> None:
    inbox: Inbox[int] = Inbox()
    for number in range(MOST_BEHIND):
        assert not inbox.full
        inbox.put(number)
    assert inbox.full
