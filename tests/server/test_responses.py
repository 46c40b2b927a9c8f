"""Protects /v1/responses: OpenAI's client against a real server; and apart from any model the order of
events, the bound of the store and the refusals.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import jsonschema
import openai
import pytest

from ridgeline.account.caller import Caller
from ridgeline.api.background import MOST_AT_WORK
from ridgeline.api.responses import Responses
from ridgeline.api.responses_store import ResponseStore, Stored
from ridgeline.api.stream import Started
from ridgeline.base.clock import VirtualClock
from ridgeline.base.errors import RequestError
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from ridgeline.server.keys import Keys
from tests.server.asgi import call
from tests.server.fake import fake_api
from tests.server.process import Server
from tests.server.test_messages import CALL, thinking_api

pytestmark = pytest.mark.anyio
M = "SmolLM2-135M-Instruct"
ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
PET = {"type": "object", "properties": {"name": {"enum": ["Rex", "Tom"]}, "age": {"enum": [1, 2]}},
       "required": ["name", "age"], "additionalProperties": False}  # fmt: skip


async def _whole(responses: Responses, **fields: Any) -> Any:
    reply = await responses.create(json.dumps({"input": "hi"} | fields).encode())
    assert isinstance(reply, bytes)
    return json.loads(reply)


async def _events(responses: Responses, **fields: Any) -> list[Any]:
    reply = await responses.create(json.dumps({"input": "hi", "stream": True} | fields).encode())
    assert isinstance(reply, Started)
    events = _parsed(b"".join([part async for part in reply]))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def _parsed(body: bytes) -> list[Any]:
    events = []
    for text in body.decode().split("\n\n")[:-1]:
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def _same(response: Any) -> Any:
    """What two runs of one request share."""
    items = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    return items, response["status"], response["usage"], response["incomplete_details"]


@pytest.mark.parametrize("answer, kinds", [
    ("Hello there.", ["message"]), ("", []),
    ("<think>Ah.</think>So. " + CALL + "\n" + CALL,
     ["reasoning", "message", "function_call", "function_call"]),
])  # fmt: skip
@pytest.mark.parametrize("limit", [None, 4])
async def test_the_events_come_to_the_whole_response(
    answer: str, kinds: list[str], limit: int | None
) -> None:
    fields: Any = {"tools": [ADD], "max_output_tokens": limit}
    whole = await _whole(Responses(thinking_api(answer)[0]), **fields)
    assert limit or [item["type"] for item in whole["output"]] == kinds
    events = await _events(Responses(thinking_api(answer)[0]), **fields)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last["type"] == f"response.{whole['status']}" and _same(last["response"]) == _same(whole)
    done: list[Any] = []
    for event in events[2:-1]:
        if event["type"] == "response.output_item.added":
            joined = ""
            assert event["output_index"] == len(done) and event["item"]["status"] == "in_progress"
        elif event["type"].endswith(".delta"):
            joined += event["delta"]
        elif event["type"].endswith((".text.done", "_text.done", "arguments.done")):
            assert event.get("text", event.get("arguments")) == joined
        elif event["type"] == "response.output_item.done":
            done.append(event["item"])
    assert done == last["response"]["output"]


async def test_a_conversation_goes_on_from_a_stored_response() -> None:
    api, engine = fake_api("yes")
    responses, me, other = Responses(api), Caller(tenant="me"), Caller(tenant="other")
    body = {"input": "one", "instructions": "Be brief."}
    first = json.loads(await responses.create(json.dumps(body).encode(), me))  # type: ignore[arg-type]
    assert json.loads(responses.retrieve(first["id"], me)) == first
    more = json.dumps({"input": "two", "previous_response_id": first["id"]}).encode()
    await responses.create(more, me)
    text = engine.tokenizer.decode(engine.submitted[-1][0], skip_special=False)
    assert text == ("<|start|>user\none<|end|>\n<|start|>assistant\nyes<|end|>\n<|start|>user\ntwo<|end|>\n"
                    "<|start|>assistant\n")  # fmt: skip
    for work in (responses.retrieve, responses.delete, responses.cancel):
        with pytest.raises(RequestError) as refused:
            work(first["id"], other)
        assert refused.value.status == 404, "another key's responses are not there"
    with pytest.raises(RequestError):
        await responses.create(more, other)
    responses.delete(first["id"], me)
    with pytest.raises(RequestError) as refused:
        await responses.create(more, me)
    assert refused.value.param == "previous_response_id" and refused.value.status == 400
    kept = await _whole(responses, store=False)
    with pytest.raises(RequestError):
        responses.retrieve(kept["id"], Caller())


def test_the_store_makes_room_at_the_cost_of_who_holds_most() -> None:
    store = ResponseStore(most_bytes=100, most_responses=5)
    store.put("small", "s", Stored(body=b"x" * 10, turns=()))
    for number in range(6):
        store.put("large", f"l{number}", Stored(body=b"x" * 28, turns=()))
    assert store.get("small", "s").body
    kept = []
    for number in range(6):
        try:
            store.get("large", f"l{number}")
            kept.append(number)
        except RequestError:
            pass
    assert kept == [4, 5]
    store.put("small", "too large", Stored(body=b"x" * 101, turns=()))
    assert store.get("small", "s").body and store.get("large", "l5").body


async def test_a_stream_is_followed_while_it_runs() -> None:
    """Whoever follows gets what the stream has told and what it tells yet, and only with its own key."""
    responses, me = Responses(fake_api("a longer answer")[0]), Caller(tenant="me")
    reply = await responses.create(b'{"input": "hi", "stream": true}', me)
    assert isinstance(reply, Started)
    (created, *_) = _parsed(reply.first)
    identity = created["response"]["id"]

    async def followed(after: int) -> bytes:
        return b"".join([part async for part in responses.follow(identity, me, after)])

    early = [asyncio.create_task(followed(after)) for after in (-1, 0, 1)]
    events = _parsed(b"".join([part async for part in reply]))
    assert len(events) > 10
    assert [_parsed(await task) for task in early] == [events[after + 1:] for after in (-1, 0, 1)]
    with pytest.raises(RequestError) as refused:
        responses.follow(identity, Caller(tenant="other"))
    assert refused.value.status == 404


async def test_the_events_of_a_stored_response_over_http() -> None:
    """From after any of them; refused: wrong numbers, odd queries, a response that was not streamed."""
    api, engine = fake_api("yes")
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=Keys())
    events = _parsed((await call(app, "POST", "/v1/responses", b'{"input": "hi", "stream": true}')).body)
    path = f"/v1/responses/{events[0]['response']['id']}"
    for after in range(len(events)):
        got = await call(app, "GET", f"{path}?stream=true&starting_after={after}")
        assert got.status == 200 and _parsed(got.body) == events[after + 1:]
    for query, param in ((f"stream=true&starting_after={len(events)}", "starting_after"),
                         ("stream=true&starting_after=-1", "starting_after"), ("stream=1", "stream"),
                         ("starting_after=1", "starting_after"), ("include=x", "include")):
        got = await call(app, "GET", f"{path}?{query}")
        assert got.status == 400 and got.json["error"]["param"] == param
    assert (await call(app, "GET", "/v1/responses/resp_x?stream=true")).status == 404
    made = await call(app, "POST", "/v1/responses", b'{"input": "hi"}')
    got = await call(app, "GET", f"/v1/responses/{made.json['id']}?stream=true")
    assert got.status == 400 and got.json["error"]["code"] == "events_not_kept"


async def test_events_are_bounded_and_end_with_their_request() -> None:
    """Events that had to make room are told to be gone, and who follows a request that is given up ends."""
    store = ResponseStore(most_bytes=100)

    async def some(number: int) -> AsyncGenerator[bytes, None]:
        for _ in range(number):
            yield b"data: 12345678901234\n\n"

    for name in ("a", "b"):
        async for _ in store.log("me", name, await Started.of(some(3))):
            pass
    with pytest.raises(RequestError) as refused:
        store.follow("me", "a", 0)
    assert refused.value.code == "events_not_kept"
    assert b"".join([part async for part in store.follow("me", "b", 2)]) == b"data: 12345678901234\n\n"
    left = store.log("me", "c", await Started.of(some(3)))
    await anext(left)
    following = store.follow("me", "c", 1)
    await left.aclose()
    assert b'"code":"events_gone"' in b"".join([part async for part in following])


@pytest.mark.parametrize("fields, param", [
    ({"background": True, "store": False}, "background"), ({"max_tokens": 4}, "max_tokens"),
    ({"truncation": "auto"}, "truncation"),
    ({"input": []}, "input"), ({"conversation": "c"}, "conversation"), ({"include": ["x"]}, "include"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"top_logprobs": 2}, "top_logprobs"),
    ({"tools": [ADD | {"strict": True, "parameters": {"not": {}}}]}, "tools[0].parameters"),
    ({"tools": [ADD], "tool_choice": {"type": "function", "name": "nope"}}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}, "text.format"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ({"input": [{"role": "user", "content": "a", "output": "b"}]}, "input[0].output"),
    ({"input": [{"role": "assistant", "content": "a"}]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
     "input[0].content[0].type"),
])  # fmt: skip
async def test_refusals_name_the_field_as_it_is_called_here(fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        with pytest.raises(RequestError) as refused:
            await _whole(Responses(fake_api()[0]), **fields, stream=stream)
        assert refused.value.param == param and refused.value.status == 400


def test_openais_client_creates_streams_and_goes_on(server: Server) -> None:
    client: Any = server.openai().responses
    fields: Any = {"model": M, "input": "Name three colours.", "temperature": 0, "max_output_tokens": 12}
    whole = client.create(**fields)
    with client.stream(**fields) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = events[-1].response
    assert text == whole.output_text == final.output_text and text
    chat = server.chat("Name three colours.", max_tokens=12)
    assert chat["choices"][0]["message"]["content"] == text, "the same chat in another dialect"
    assert client.retrieve(whole.id).output_text == text
    more = client.create(**fields | {"input": "And one more?", "previous_response_id": whole.id})
    assert more.usage.input_tokens > whole.usage.input_tokens + whole.usage.output_tokens
    client.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.retrieve(whole.id)


def test_openais_client_gets_structure_and_calls(server: Server) -> None:
    client: Any = server.openai().responses
    fields: Any = {"model": M, "temperature": 0, "max_output_tokens": 40}
    shaped = {"format": {"type": "json_schema", "name": "pet", "schema": PET}}
    jsonschema.validate(json.loads(client.create(input="A pet.", text=shaped, **fields).output_text), PET)
    tool = {"type": "function", "name": "register", "parameters": PET, "strict": True}
    asked: Any = [{"role": "user", "content": "Register a pet."}]
    fields["parallel_tool_calls"] = False
    called = client.create(input=asked, tools=[tool], tool_choice="required", **fields)
    (call,) = called.output
    assert call.type == "function_call" and call.name == "register"
    jsonschema.validate(json.loads(call.arguments), PET)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    answer = client.create(input=[*asked, *called.output, result], **fields)
    assert [item.type for item in answer.output] == ["message"]


def test_a_stream_is_seen_and_cancelled_from_beside(server: Server) -> None:
    client: Any = server.openai().responses
    body: Any = {"model": M, "input": "Count to a thousand.", "max_output_tokens": 4000, "temperature": 1.0}
    events: list[Any] = []
    identity = ""
    for event in client.create(**body, stream=True):
        events.append(event)
        if event.type == "response.output_text.delta" and not identity:  # more may be on their way
            identity = events[0].response.id
            assert client.retrieve(identity).status == "in_progress"
            assert client.cancel(identity).status == "cancelled"
    assert events[-1].response.status == "cancelled" and len(events) < 2000
    assert client.retrieve(identity).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        client.cancel(identity)
    rest = list(client.retrieve(identity, stream=True, starting_after=2))
    assert rest == events[3:], "what was told is told again"


def test_openais_client_comes_back_for_a_response(server: Server) -> None:
    """Made in the background: there at once, polled to its end, followed, and ended from beside."""
    client = server.openai().responses
    asked = client.create(model=M, input="Say hi.", background=True, max_output_tokens=8, temperature=0)
    assert asked.status in ("queued", "in_progress") and asked.background
    while asked.status in ("queued", "in_progress"):
        time.sleep(0.02)
        asked = client.retrieve(asked.id)
    plain = client.create(model=M, input="Say hi.", max_output_tokens=8, temperature=0)
    assert asked.output_text == plain.output_text and asked.status == plain.status
    longer: dict[str, Any] = {"background": True, "stream": True, "max_output_tokens": 1500}
    with client.create(model=M, input="Count.", **longer) as stream:
        first = next(iter(stream))
        assert first.type == "response.created"
    with client.retrieve(first.response.id, stream=True, starting_after=0) as rest:
        told: list[Any] = []
        for event in rest:
            told.append(event)
            if len(told) == 3:
                assert client.cancel(first.response.id).status == "cancelled"
    assert [event.sequence_number for event in told] == list(range(1, len(told) + 1))
    assert told[-1].response.status == "cancelled"
    assert client.retrieve(first.response.id).status == "cancelled"


async def _ended(responses: Responses, identity: str) -> Any:
    async with asyncio.timeout(5):
        while True:
            found = json.loads(responses.retrieve(identity, Caller()))
            if found["status"] not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(0)


async def test_a_response_takes_one_place_at_work() -> None:
    api, engine = fake_api()
    engine.gate = asyncio.Event()
    waiting = asyncio.create_task(_whole(Responses(api)))
    while not engine.open:
        await asyncio.sleep(0)
    assert api.admission.num_active == 1
    engine.gate.set()
    await waiting
    assert not api.admission.num_active


async def test_a_background_response_is_there_before_its_first_token() -> None:
    """Queued, and its events can be waited for; as the same one asked for plainly; and so many of a key."""
    api, engine = fake_api("hello there")
    responses = Responses(api)
    whole = await _whole(responses, max_output_tokens=5)
    engine.gate = asyncio.Event()
    asked = await _whole(responses, background=True, max_output_tokens=5)
    assert (asked["status"], asked["output"], asked["background"]) == ("queued", [], True)
    followed = responses.follow(asked["id"], Caller())
    others = [await _whole(responses, background=True) for _ in range(MOST_AT_WORK - 1)]
    responses.cancel(others[0]["id"], Caller())
    assert json.loads(responses.retrieve(others[0]["id"], Caller()))["status"] == "cancelled", "at once"
    with pytest.raises(RequestError) as refusal:
        await _whole(responses, background=True)
    assert refusal.value.status == 429 and refusal.value.code == "too_many_responses"
    engine.gate.set()
    ended = await _ended(responses, asked["id"])
    assert _same(ended | {"background": False}) == _same(whole)
    told = _parsed(b"".join([part async for part in followed]))
    assert told[0]["type"] == "response.created" and told[-1]["response"]["id"] == asked["id"]
    async with asyncio.timeout(5):
        while api.admission.num_active:
            await asyncio.sleep(0)
    again = await _whole(responses, background=True, previous_response_id=asked["id"])
    assert (await _ended(responses, again["id"]))["status"] == "completed"


async def test_what_an_answer_had_when_it_failed_is_incomplete() -> None:
    """And in progress until then."""
    api, engine = fake_api("hello there")
    responses = Responses(api)
    engine.fail_after = 3
    seen = set()
    asked = await _whole(responses, background=True)
    while (now := json.loads(responses.retrieve(asked["id"], Caller())))["status"] != "failed":
        seen |= {item["status"] for item in now["output"]}
        await asyncio.sleep(0)
    assert seen == {"in_progress"}
    assert now["error"]["code"] and [item["status"] for item in now["output"]] == ["incomplete"]


async def test_a_background_response_that_cannot_be_is_refused_or_failed() -> None:
    """By a refusal before it exists; once it exists, its status says so."""
    api, engine = fake_api()
    responses = Responses(api)
    with pytest.raises(RequestError, match="does not exist"):
        await _whole(responses, background=True, model="other")
    engine.refuse = RequestError("never fits", code="too_large")
    asked = await _whole(responses, background=True)
    ended = await _ended(responses, asked["id"])
    assert ended["status"] == "failed" and ended["error"]["code"] == "too_large"
    (event,) = _parsed(b"".join([part async for part in responses.follow(asked["id"], Caller())]))
    assert event["type"] == "response.failed"
