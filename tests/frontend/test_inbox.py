"""What waits for a reader comes in order and all at once; a reader that goes away breaks nobody."""

import asyncio
from collections.abc import Sequence

from ridgeline.frontend.inbox import MOST_BEHIND, Inbox
from ridgeline.frontend.protocol import Logprobs, News


class Taker:
    """An AtOnce that notes what it has, and how often it settled. Not open, it takes none."""

    def __init__(self, error: Exception | None = None) -> None:
        self.had: list[tuple[int, list[int], float]] = []
        self.open, self.num_settled, self.error = True, 0, error

    def take(self, choice: int, tokens: Sequence[int], now_s: float) -> bool:
        if self.error is not None:
            raise self.error
        if self.open:
            self.had.append((choice, list(tokens), now_s))
        return self.open

    def settle(self) -> None:
        self.num_settled += 1


def _news(number: int, choice: int = 0, **fields: object) -> News:
    scored = Logprobs(token_ids=[number], logprobs=[-1.0], rank=0)
    return News(id="r", choice=choice, new_tokens=[number], num_output=number, logprobs=[scored],
                **fields)  # type: ignore[arg-type]


def test_what_waits_is_joined_by_choice() -> None:
    async def work() -> None:
        inbox = Inbox("r", (0, 1))
        reader = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        inbox.put(_news(1, times_s={"first_token": 1.0}))
        inbox.tell(0.0)
        assert await reader == [_news(1, times_s={"first_token": 1.0})], "alone it stays as it is"
        failure = ValueError("over")
        for number, choice in ((2, 0), (2, 1), (3, 0)):
            inbox.put(_news(number, choice))
        inbox.put(_news(4, 0, finish="stop", times_s={"finished": 2.0}, account={"num_chunks": 1}))
        inbox.fail(failure)
        inbox.put(_news(9))
        inbox.fail(ValueError("again"))
        first, other, last = await inbox.take()
        assert isinstance(first, News) and isinstance(other, News) and last is failure
        assert list(first.new_tokens) == [2, 3, 4] and first.num_output == 4 and first.finish == "stop"
        assert [entry.token_ids for entry in first.logprobs] == [[2], [3], [4]]
        assert first.times_s == {"finished": 2.0} and first.account == {"num_chunks": 1}
        assert other == _news(2, 1)

    asyncio.run(work())


def test_a_reader_that_is_being_cancelled_is_not_woken() -> None:
    async def work() -> None:
        inbox = Inbox("r", (0, 1))
        reader = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        reader.cancel()
        inbox.put(_news(1))
        inbox.tell(0.0)
        await asyncio.gather(reader, return_exceptions=True)
        assert reader.cancelled() and await inbox.take() == [_news(1)]

    asyncio.run(work())


def test_it_says_when_it_is_full() -> None:
    inbox = Inbox("r", (0, 1))
    for number in range(MOST_BEHIND):
        assert not inbox.full
        inbox.put(_news(number))
    assert inbox.full


def _tokens(*numbers: int) -> News:
    return News(id="r", new_tokens=numbers)


def test_at_once_has_what_the_reader_waits_for() -> None:
    """Tokens of many steps as one; an end, what it will not have and all after that are the reader's."""
    taker = Taker()

    async def work() -> None:
        inbox = Inbox("r", (0, 1), taker)
        assert not inbox.hand(0, (1,), 1.0), "nobody waits"
        inbox.put(_tokens(1))
        inbox.tell(1.0)
        assert await inbox.take() == [_tokens(1)] and not taker.had
        reader = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        assert inbox.hand(1, (7,), 2.0)
        for number in (2, 3):
            inbox.put(_tokens(number))
        assert not inbox.hand(0, (4,), 3.0), "some wait before it"
        inbox.tell(3.0)
        assert taker.had == [(1, [7], 2.0), (0, [2, 3], 3.0)] and not reader.done()
        taker.open = False
        inbox.put(_tokens(4))
        inbox.tell(4.0)
        taker.open = True
        inbox.put(News(id="r", new_tokens=[5], finish="length"))
        inbox.tell(5.0)
        (last,) = await reader
        assert isinstance(last, News) and list(last.new_tokens) == [4, 5] and len(taker.had) == 2

    asyncio.run(work())


def test_more_than_tokens_is_the_reader_s() -> None:
    async def work() -> None:
        inbox = Inbox("r", (0,), Taker())
        reader = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        inbox.put(_news(1))
        inbox.tell(0.0)
        assert await reader == [_news(1)], "its log-probabilities have no other way"

    asyncio.run(work())


def test_what_at_once_raises_is_the_reader_s() -> None:
    async def work(*, waits: bool) -> None:
        inbox = Inbox("r", (0, 1), Taker(ValueError("cannot be written")))
        reader = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        if waits:
            inbox.put(_tokens(1))
            inbox.put(News(id="r", choice=1, new_tokens=(1,)))
            inbox.tell(0.0)
        else:
            assert inbox.hand(0, (1,), 0.0)
        inbox.put(_tokens(2))
        *_, failure = await reader
        assert isinstance(failure, ValueError)

    asyncio.run(work(waits=False))
    asyncio.run(work(waits=True))
