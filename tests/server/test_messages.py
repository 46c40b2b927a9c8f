"""Protects /v1/messages apart from any model: what its fields become, the order of its events, and that whole
and streamed answers are the same. The engine is a stand-in.
"""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ridgeline.api.messages import Messages
from ridgeline.api.openai import OpenAI
from ridgeline.api.stream import Started
from ridgeline.base.errors import RequestError
from tests.server.fake import FakeEngine, fake_api

pytestmark = pytest.mark.anyio
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
USER = [{"role": "user", "content": "hi"}]


def thinking_api(answer: str) -> tuple[OpenAI, FakeEngine]:
    api, engine = fake_api(answer)
    card = msgspec.structs.replace(api.served.card, max_model_len=2048)
    api.served = replace(api.served, thinks=True, card=card, max_request_tokens=2048)
    return api, engine


async def _whole(api: OpenAI, **fields: Any) -> Any:
    reply = await Messages(api).create(json.dumps({"max_tokens": 200, "messages": USER} | fields).encode())
    assert isinstance(reply, bytes)
    return json.loads(reply)


async def _events(api: OpenAI, **fields: Any) -> list[Any]:
    body = {"max_tokens": 200, "messages": USER, "stream": True} | fields
    reply = await Messages(api).create(json.dumps(body).encode())
    assert isinstance(reply, Started)
    joined, events = b"".join([part async for part in reply]).decode(), []
    for text in joined.split("\n\n")[:-1]:
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert not api.admission.num_active
    return events


def _content(events: list[Any]) -> list[Any]:
    """The blocks of a stream, put together as a client does."""
    blocks: list[Any] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"] | {"json": ""})
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1, "one block after another"
            (name,) = event["delta"].keys() - {"type"}
            key = "json" if name == "partial_json" else name
            blocks[-1][key] += event["delta"][name]
    for block in blocks:
        if text := block.pop("json"):
            block["input"] = json.loads(text)
        block.pop("id", None)
    return blocks


@pytest.mark.parametrize("answer, kinds", [
    ("Hello there.", ["text"]), ("", []), ("So. " + CALL, ["text", "tool_use"]),
    (CALL + "\n" + CALL + " Done.", ["tool_use", "tool_use", "text"]),
    ("<think>\nAh.\n</think>\n\nYes." + CALL, ["thinking", "text", "tool_use"]),
])  # fmt: skip
async def test_a_stream_is_the_whole_answer_in_order(answer: str, kinds: list[str]) -> None:
    fields: Any = {"tools": [TOOL], "thinking": {"type": "adaptive"}}
    whole = await _whole(thinking_api(answer)[0], **fields)
    assert [block["type"] for block in whole["content"]] == kinds
    events = await _events(thinking_api(answer)[0], **fields)
    for block in whole["content"]:
        block.pop("id", None)
    assert _content(events) == whole["content"]
    names = [event["type"] for event in events]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    assert names.count("content_block_start") == names.count("content_block_stop") == len(kinds)
    assert events[0]["message"]["content"] == [] and events[0]["message"]["usage"]["output_tokens"] <= 1
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert whole["stop_reason"] == ("tool_use" if "tool_use" in kinds else "end_turn")
    assert events[-2]["usage"] == whole["usage"]


async def test_why_it_ended() -> None:
    cut = await _whole(fake_api("hello there")[0], max_tokens=3)
    assert cut["stop_reason"] == "max_tokens" and cut["content"] == [{"type": "text", "text": "hel"}]
    stopped = await _whole(fake_api("hello there")[0], stop_sequences=["zz", " th"])
    assert stopped["content"][0]["text"] == "hello"
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " th")
    assert stopped["usage"]["cache_read_input_tokens"] == 3


async def test_a_conversation_becomes_turns_of_a_chat() -> None:
    """Seen in the prompt that the engine got: order, results as turns, calls and errors as text."""
    api, engine = fake_api()
    cached = {"cache_control": {"type": "ephemeral"}}
    await _whole(api, system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}], messages=[
        {"role": "user", "content": [{"type": "text", "text": "one", **cached}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "two"},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "bad", "is_error": True},
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "3"}]},
            {"type": "text", "text": "go on"}]},
    ])  # fmt: skip
    text = engine.tokenizer.decode(engine.submitted[0][0], skip_special=False)
    assert text == (
        "<|start|>system\nBe brief.<|end|>\n<|start|>user\none<|end|>\n<|start|>assistant\ntwo<|end|>\n"
        "<|start|>tool\nError: bad<|end|>\n<|start|>tool\n3<|end|>\n<|start|>user\ngo on<|end|>\n"
        "<|start|>assistant\n"
    )


@pytest.mark.parametrize("fields, param", [
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": None}, "max_tokens"), ({"best_of": 1}, "best_of"),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking"), ({"container": "c"}, "container"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"messages": [{"role": "assistant", "content": "I"}]}, "messages"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
     "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
     "messages[0].content[0]"),
    ({"tools": [TOOL | {"name": "no good"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"strict": True, "input_schema": {"not": {}}}]}, "tools[0].input_schema"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format"),
])  # fmt: skip
async def test_refusals_name_the_field_as_it_is_called_here(fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        with pytest.raises(RequestError) as refused:
            await _whole(fake_api()[0], **fields, stream=stream)
        assert refused.value.param == param and refused.value.status == 400


async def test_thoughts_have_a_budget_below_the_limit() -> None:
    api, engine = thinking_api("ok")
    with pytest.raises(RequestError) as refused:
        await _whole(api, max_tokens=50, thinking={"type": "enabled", "budget_tokens": 50})
    assert refused.value.param == "thinking.budget_tokens"
    await _whole(api)
    assert engine.submitted[0][1].grammar is None, "a model without tokens for the tags is let alone"


async def test_what_breaks_a_stream_is_its_last_event() -> None:
    api, engine = fake_api()
    engine.fail_after = 2
    events = await _events(api, max_tokens=4)
    assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "api_error"
    assert events[-2]["type"] == "content_block_delta"
