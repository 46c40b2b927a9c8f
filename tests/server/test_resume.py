"""Protects streams that outlive their connection: joined they are the unbroken stream, to the byte, only
their own key reads on, and nothing grows."""

import asyncio
import re

import pytest
from starlette.types import ASGIApp

from ridgeline.account.caller import Caller
from ridgeline.api.resume import Streams
from ridgeline.api.stream import Started
from ridgeline.base.clock import VirtualClock
from ridgeline.base.errors import RequestError
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from ridgeline.server.keys import Keys, plain
from tests.server.asgi import call
from tests.server.fake import FakeEngine, fake_api

pytestmark = pytest.mark.anyio
KEEP = {"x-ridgeline-stream": "keep"}
BODIES = {
    "/v1/completions": b'{"prompt": "abc", "stream": true, "n": 2, "logprobs": 1}',
    "/v1/chat/completions": b'{"messages": [{"role": "user", "content": "hi"}], "stream": true}',
    "/v1/responses": b'{"input": "hi", "stream": true}',
    "/v1/messages": b'{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], '
                    b'"stream": true}',
}


def _app(answer: str = "hello world", keys: Keys | None = None) -> tuple[ASGIApp, FakeEngine]:
    api, engine = fake_api(answer)
    health = Health(engine, VirtualClock(), 30.0)
    return build_app(api, health, keys=keys or Keys()), engine


def _plain(stream: bytes) -> bytes:
    """Without numbers, and without what differs from one request to the next."""
    stream = re.sub(rb"^id: \d+\n", b"", stream, flags=re.M)
    stream = re.sub(rb'"(created|created_at|completed_at)":\d+', rb'"\1":0', stream)
    return re.sub(rb'"(chatcmpl-|cmpl-|resp_|msg_|rs_)\w+"', rb'"\1"', stream)


@pytest.mark.parametrize("path", BODIES)
async def test_a_broken_stream_joined_is_the_unbroken_one(path: str) -> None:
    """Broken after its first events and again after each few; by header and by query; in every dialect."""
    app, engine = _app()
    whole = (await call(app, "POST", path, BODIES[path])).body
    got = await call(app, "POST", path, BODIES[path], KEEP, leave_after_first_event=True)
    name, joined = got.headers["x-ridgeline-stream"], got.body
    place = f"/v1/ridgeline/streams/{name}"
    while not _plain(joined).endswith(_plain(whole)[-20:]):
        number = joined.count(b"id: ")
        assert joined.count(b"\n\n") == number, "every event has a number"
        rest = await call(app, "GET", place, headers={"last-event-id": str(number)},
                          leave_after_first_event=True)
        assert rest.status == 200 and rest.headers["x-ridgeline-stream"] == name
        joined += rest.body
    assert _plain(joined) == _plain(whole)
    again = await call(app, "GET", place + "?from=2")
    assert again.body == joined[joined.index(b"id: 3\n"):]
    assert not engine.open


async def test_numbers_are_opt_in_and_what_is_asked_wrongly_is_refused() -> None:
    app, _ = _app()
    path, body = "/v1/completions", BODIES["/v1/completions"]
    plain = await call(app, "POST", path, body)
    assert b"id: " not in plain.body.replace(b'"id": ', b"") and "x-ridgeline-stream" not in plain.headers
    assert (await call(app, "POST", path, body, {"x-ridgeline-stream": "yes"})).status == 400
    name = (await call(app, "POST", path, body, KEEP)).headers["x-ridgeline-stream"]
    place = f"/v1/ridgeline/streams/{name}"
    for wrong in ("-1", "a", "1.5", "", "9" * 12):
        assert (await call(app, "GET", f"{place}?from={wrong}")).status == 400, wrong
    late = await call(app, "GET", f"{place}?from=999")
    assert late.status == 410 and late.json["error"]["param"] == "from"
    assert (await call(app, "GET", "/v1/ridgeline/streams/none")).status == 404


async def test_only_its_own_key_reads_on_or_ends_it() -> None:
    mine, other = {"x-api-key": "mine"}, {"x-api-key": "other"}
    app, engine = _app(keys=Keys([plain("mine"), plain("other")]))
    engine.gate = asyncio.Event()
    body = BODIES["/v1/chat/completions"]
    task = asyncio.create_task(call(app, "POST", "/v1/chat/completions", body, KEEP | mine,
                                    leave_after_first_event=True))
    engine.gate.set()
    name = (await task).headers["x-ridgeline-stream"]
    place = f"/v1/ridgeline/streams/{name}"
    for method in ("GET", "DELETE"):
        assert (await call(app, method, place, headers=other)).status == 404
    assert (await call(app, "GET", place)).status == 401
    assert (await call(app, "DELETE", place, headers=mine)).json["deleted"]
    assert (await call(app, "GET", place, headers=mine)).status == 404
    assert not engine.open


async def _events(num: int, gate: asyncio.Event | None = None, size: int = 8):  # type: ignore[no-untyped-def]
    for number in range(num):
        if gate is not None and number == 1:
            await gate.wait()
        yield b"data: " + b"%d" % number * size + b"\n\n"
        await asyncio.sleep(0)


async def _all(stream: Started[bytes]) -> bytes:
    return b"".join([part async for part in stream])


async def test_what_is_kept_is_bounded_in_bytes() -> None:
    """The beginning of the largest makes room; whoever needs it is told, before the stream or within."""
    streams, caller = Streams(most_bytes=2000), Caller()
    name, reader = await streams.keep(caller, await Started.of(_events(400)))
    await asyncio.sleep(0.1)
    assert streams.num_bytes <= 2000
    assert b"stream_gone" in await _all(reader)
    with pytest.raises(RequestError, match="of this stream are there") as gone:
        await streams.resume(caller, name, 0)
    assert gone.value.status == 410
    tail = await _all(await streams.resume(caller, name, 395))
    assert tail.count(b"\n\n") == 5 and tail.startswith(b"id: 396\n")


async def test_what_nobody_reads_ends() -> None:
    """After a time, and when a key has too many of them; what is being read stays."""
    streams, gate = Streams(keep_s=0.05, most_away=2), asyncio.Event()
    names = []
    for tenant in ("a", "a", "a", "b"):
        name, reader = await streams.keep(Caller(tenant=tenant), await Started.of(_events(9, gate)))
        names.append(name)
        await reader.aclose()
    assert len(streams) == 3, "a's first had to end"
    kept = await streams.resume(Caller(tenant="a"), names[2], 0)
    await asyncio.sleep(0.15)
    assert len(streams) == 1
    gate.set()
    assert (await _all(kept)).count(b"\n\n") == 9
    await asyncio.sleep(0.1)
    assert len(streams) == streams.num_bytes == 0


async def test_the_eldest_unread_makes_room_for_a_new_one() -> None:
    streams, caller = Streams(most_streams=2), Caller()
    first, reader = await streams.keep(caller, await Started.of(_events(3)))
    await reader.aclose()
    readers = [(await streams.keep(caller, await Started.of(_events(3))))[1] for _ in range(2)]
    with pytest.raises(RequestError):
        await streams.resume(caller, first, 0)
    with pytest.raises(RequestError) as full:
        await streams.keep(caller, await Started.of(_events(3)))
    assert full.value.status == 429 and len(streams) == 2
    for reader in readers:
        await reader.aclose()
