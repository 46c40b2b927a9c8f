"""The engine's socket: who asked is answered, and what is broken costs nobody else anything."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio

from ridgeline.base.errors import EngineDeadError, RequestError
from ridgeline.engine.wire import Parcel, news_of
from ridgeline.frontend.client import EngineClient
from ridgeline.frontend.inbox import MOST_BEHIND
from ridgeline.frontend.protocol import Abort, News, Submit, Tokens
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.plan import RowLogprobs
from ridgeline.schedule.request import Finish, Output
from ridgeline.spec.sampling import SamplingParams
from tests.engine.serve import fake_loop, service_over
from tests.helpers_schedule import expected

PROMPT = [3, 4, 5, 6, 7]
LONG = SamplingParams(max_tokens=100, ignore_eos=True)


@asynccontextmanager
async def client_of(address: str, **kwargs: float) -> AsyncIterator[EngineClient]:
    client = await asyncio.wait_for(EngineClient.connect(address, **kwargs), 10)
    try:
        yield client
    finally:
        await client.close()


async def collect(
    client: EngineClient, name: str, params: SamplingParams, prompt: list[int] = PROMPT
) -> list[News]:
    async with aclosing(client.submit(name, prompt, params)) as news:
        return [one async for one in news]


def tokens_of(news: list[News]) -> list[int]:
    return [token for one in news for token in one.new_tokens]


async def idle(client: EngineClient) -> dict[str, Any]:
    """The stats once nothing is at work any more."""
    for _ in range(200):
        stats = dict(await client.ask("stats"))
        if not stats["has_work"] and not stats["num_running"] and not stats["num_waiting"]:
            return stats
        await asyncio.sleep(0.02)
    raise AssertionError(stats)


def run(work: Any, loop: Loop | None = None) -> None:
    with service_over(loop or fake_loop()) as (_, address):
        asyncio.run(asyncio.wait_for(work(address), 30))


def test_concurrent_requests_get_their_own_tokens() -> None:
    """Twenty requests, more than there are rows, from two clients: each hears its own tokens and usage."""

    async def work(address: str) -> None:
        async with client_of(address) as one, client_of(address) as two:
            assert one.info["vocab_size"] == 40
            jobs = [
                collect(client, f"{index}", SamplingParams(max_tokens=12, seed=index), [3 + index % 20, 4, 5])
                for index, client in enumerate([one, two] * 10)
            ]
            for index, news in enumerate(await asyncio.gather(*jobs)):
                want, finish = expected([3 + index % 20, 4, 5], SamplingParams(max_tokens=12), index, 128)
                assert tokens_of(news) == want and news[-1].finish == str(finish)
                assert news[-1].num_prompt == 3 and news[-1].num_output == len(want)
            stats = await idle(one)
            assert stats["num_requests"] == 20 and stats["num_used_pages"] == 0

    run(work)


def test_choices_end_apart() -> None:
    """n = 2: the generator ends when both have ended."""

    async def work(address: str) -> None:
        async with client_of(address) as client:
            news = await collect(client, "a", SamplingParams(n=2, max_tokens=5, seed=1, ignore_eos=True))
            assert sorted(one.choice for one in news if one.finish) == [0, 1]
            assert sum(len(one.new_tokens) for one in news) == 10

    run(work)


def test_closing_the_stream_aborts() -> None:
    """C-13: a reader that leaves frees its pages at once, without another request to wake the loop."""

    async def work(address: str) -> None:
        async with client_of(address) as client:
            streams = [client.submit(str(i), PROMPT, LONG) for i in range(8)]
            for stream in streams:
                await anext(stream)
            for stream in streams:
                await stream.aclose()
            stats = await idle(client)
            assert stats["finished"].get("abort") == 8 and stats["num_used_pages"] == 0

    run(work, fake_loop(before_step=lambda plan: time.sleep(0.002)))


def test_a_reader_that_is_far_behind_is_given_up() -> None:
    """What waits for it is bounded: it gets what was kept, then an error, and the engine stops its work."""

    async def work(address: str) -> None:
        async with client_of(address) as client:
            stream = client.submit("slow", PROMPT, LONG)
            await anext(stream)
            for _ in range(MOST_BEHIND):
                await client._inboxes.take([[News(id="slow", new_tokens=[5])]], 0.0)
            assert (await idle(client))["finished"].get("abort") == 1
            kept = await anext(stream)
            while len(kept.new_tokens) < MOST_BEHIND:
                kept = await anext(stream)
            with pytest.raises(RequestError, match="too far behind"):
                await anext(stream)

    run(work, fake_loop(before_step=lambda plan: time.sleep(0.005)))


def test_stop_string_abort_counts_the_tokens_that_count() -> None:
    """abort(keep_tokens): the closing account says stop, with the tokens that the text layer counted."""

    async def work(address: str) -> None:
        async with client_of(address) as client:
            seen, last = 0, None
            async for news in client.submit("a", PROMPT, LONG):
                seen += len(news.new_tokens)
                last = news
                if seen >= 3 and news.finish is None:
                    client.abort("a", news.choice, 3)
            assert last is not None and last.finish == "stop" and last.num_output == 3
            await idle(client)

    run(work, fake_loop(before_step=lambda plan: time.sleep(0.002)))


@pytest.mark.parametrize(("prompt", "params", "param"), [
    ([], SamplingParams(), "prompt"), ([40], SamplingParams(), "prompt"), ([-1], SamplingParams(), "prompt"),
    ([2**40], SamplingParams(), "prompt"), ([3] * 128, SamplingParams(), "prompt"),
    ([3], SamplingParams(temperature=float("nan")), "temperature"), ([3], SamplingParams(n=0), "n"),
    ([3], SamplingParams(stop_token_ids=(99,)), "stop_token_ids"),
])  # fmt: skip
def test_refusals_name_the_field(prompt: list[int], params: SamplingParams, param: str) -> None:
    """What the API's door let through is refused by the engine's, and the neighbours go on."""

    async def work(address: str) -> None:
        async with client_of(address) as client:
            neighbour = asyncio.create_task(collect(client, "good", SamplingParams(max_tokens=5, seed=1)))
            with pytest.raises(RequestError) as refusal:
                await collect(client, "bad", params, prompt)
            assert refusal.value.param == param and refusal.value.status == 400
            assert (await neighbour)[-1].finish in ("stop", "length")

    run(work)


def test_malformed_frames_cost_nobody_anything() -> None:
    """Garbage, a wrong type, a bomb of nesting, an unknown tag: counted, answered if there is an id."""
    frames = [
        b"", b"\xc1", b"\xff" * 100, msgspec.msgpack.encode(5),
        msgspec.msgpack.encode({"type": "nope", "id": "x"}),
        msgspec.msgpack.encode({"type": "submit", "id": "x", "prompt": "text", "sampling": {}}),
        b"\x91" * 100_000 + b"\x90", msgspec.msgpack.encode([Abort(id="q"), 7]),
    ]  # fmt: skip

    async def work(address: str) -> None:
        async with client_of(address) as client:
            raw = zmq.asyncio.Context.instance().socket(zmq.DEALER)
            raw.connect(address)
            for frame in frames:
                await raw.send(frame)
            await raw.send_multipart([b"two", b"parts"])
            answers = [msgspec.msgpack.decode(await asyncio.wait_for(raw.recv(), 5)) for _ in range(2)]
            assert all(answer[0]["type"] == "refused" and answer[0]["id"] == "x" for answer in answers)
            assert (await collect(client, "a", SamplingParams(max_tokens=3)))[-1].finish is not None
            while (counted := (await idle(client))["num_malformed"]) < len(frames) + 1:
                await asyncio.sleep(0.01)  # two sockets: nothing says whose frames come first
            assert counted == len(frames) + 1
            raw.close(linger=0)

    run(work)


def test_ids_belong_to_their_client() -> None:
    """A second client can neither take over nor abort an id that is running; its own copy is refused."""

    async def work(address: str) -> None:
        async with client_of(address) as one, client_of(address) as two:
            stream = one.submit("same", PROMPT, LONG)
            await anext(stream)
            two.abort("same")
            with pytest.raises(RequestError, match="is running"):
                await collect(two, "same", LONG)
            rest = [news async for news in stream]
            assert rest[-1].finish == "length" and rest[-1].num_output == 100

    run(work, fake_loop(before_step=lambda plan: time.sleep(0.001)))


def test_vanished_client_is_aborted() -> None:
    """A client process that dies without a word stops costing anything at its next news."""

    async def work(address: str) -> None:
        async with client_of(address) as client:
            context = zmq.asyncio.Context()
            raw = context.socket(zmq.DEALER)
            raw.connect(address)
            submit = Submit(
                id="r",
                prompt=PROMPT,
                sampling=msgspec.convert(
                    {"max_tokens": 100, "ignore_eos": True}, type=Submit.__annotations__["sampling"]
                ),
            )
            await raw.send(msgspec.msgpack.encode(submit))
            await asyncio.wait_for(raw.recv(), 5)
            context.destroy(linger=0)
            stats = await idle(client)
            assert stats["finished"].get("abort") == 1

    run(work, fake_loop(before_step=lambda plan: time.sleep(0.005)))


def test_drain_refuses_and_answers_when_idle() -> None:
    async def work(address: str) -> None:
        async with client_of(address) as client:
            stream = client.submit("a", PROMPT, LONG)
            await anext(stream)
            drained = asyncio.create_task(client.ask("drain"))
            await asyncio.sleep(0.02)
            with pytest.raises(RequestError) as refusal:
                await collect(client, "late", LONG)
            assert refusal.value.status == 503 and not drained.done()
            assert [news async for news in stream][-1].finish == "length"
            await asyncio.wait_for(drained, 5)

    run(work, fake_loop(before_step=lambda plan: time.sleep(0.002)))


def test_unknown_question_is_refused() -> None:
    async def work(address: str) -> None:
        async with client_of(address) as client:
            with pytest.raises(RequestError, match="not a question"):
                await client.ask("weather")

    run(work)


def test_stuck_engine_is_given_up() -> None:
    """A step that never ends: whoever waits hears of it after stall_s, and so does everybody after."""

    async def work(address: str) -> None:
        async with client_of(address, stall_s=0.4) as client:
            with pytest.raises(EngineDeadError, match="no step has finished"):
                await collect(client, "a", LONG)
            assert client.dead is not None
            with pytest.raises(EngineDeadError):
                await client.ask("stats")

    slept = iter([2.0])
    run(work, fake_loop(before_step=lambda plan: time.sleep(next(slept, 0.0))))


def test_shutdown_ends_what_runs() -> None:
    """The requests in flight are told abort, not left waiting; then the other end is gone."""

    async def work(address: str) -> None:
        async with client_of(address) as client:
            stream = client.submit("a", PROMPT, LONG)
            await anext(stream)
            await client.ask("shutdown")
            assert [news async for news in stream][-1].finish == "abort"

    run(work, fake_loop(before_step=lambda plan: time.sleep(0.002)))


def test_tokens_alone_go_as_numbers() -> None:
    """In order, whatever stands between; all else, and all of a request without a route, as whole news."""

    def output(token: int, choice: int = 0, **fields: Any) -> Output:
        return Output("r", choice, (token,), 2, 3, **fields)

    scored = RowLogprobs(token_ids=np.array([7]), logprobs=np.array([-1.0], np.float32), rank=0)
    whole = [output(5, times_s={"first_token": 1.0}), output(6, finish=Finish.STOP, account={"late": 1}),
             output(7, logprobs=(scored,)), Output("r", 0, (8, 9)),
             output(8, pooled=np.ones(2, np.float32))]  # fmt: skip
    parcel = Parcel()
    for one in (output(1), output(2, choice=2), *whole, output(3)):
        parcel.add(one, 40)
    first, *rest, last = parcel.messages
    assert first == Tokens(routes=[40, 42], tokens=[1, 2]) and last == Tokens(routes=[40], tokens=[3])
    assert rest == [news_of(one) for one in whole]
    parcel = Parcel()
    parcel.add(output(1), None)
    assert parcel.messages == [news_of(output(1))]
