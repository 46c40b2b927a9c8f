"""Protects what a user of Anthropic's client sees, against a real server process on the default model."""

import json
from typing import Any

import anthropic
import jsonschema
import pytest

from tests.server.process import Server

M = "SmolLM2-135M-Instruct"
COUNT: Any = [{"role": "user", "content": "Count from one to ten in words."}]
GREEDY: Any = {"extra_body": {"temperature": 0}}
WEATHER: Any = {"name": "get_weather", "description": "Weather.", "input_schema": {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False}}  # fmt: skip


@pytest.fixture
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


def test_streamed_text_is_the_whole_text(server: Server, client: anthropic.Anthropic) -> None:
    fields: Any = {"model": M, "max_tokens": 12, "messages": COUNT, "system": "Be brief.", **GREEDY}
    whole = client.messages.create(**fields)
    (block,) = whole.content
    assert block.type == "text" and block.text and whole.usage.output_tokens <= 12
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == block.text == final.content[0].text and final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = client.messages.count_tokens(model=M, messages=COUNT, system="Be brief.").input_tokens
    for usage in (whole.usage, final.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    chat = server.chat(messages=[{"role": "system", "content": "Be brief."}, *COUNT], max_tokens=12)
    assert chat["choices"][0]["message"]["content"] == block.text, "the same chat in another dialect"
    assert chat["usage"]["prompt_tokens"] == counted


def test_a_tool_is_called_and_its_result_read(client: anthropic.Anthropic) -> None:
    fields: Any = {"model": M, "max_tokens": 90, "tools": [WEATHER], **GREEDY}
    question: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    choice: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    whole = client.messages.create(messages=question, tool_choice=choice, **fields)
    (call,) = whole.content
    assert call.type == "tool_use" and call.name == "get_weather" and whole.stop_reason == "tool_use"
    jsonschema.validate(call.input, WEATHER["input_schema"])
    with client.messages.stream(messages=question, tool_choice=choice, **fields) as stream:
        final = stream.get_final_message()
    assert [(b.type, b.input) for b in final.content if b.type == "tool_use"] == [("tool_use", call.input)]
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees"}
    said: Any = {"role": "assistant", "content": whole.content}
    more: Any = [*question, said, {"role": "user", "content": [result]}]
    answer = client.messages.create(messages=more, tool_choice={"type": "none"}, **fields)
    assert [block.type for block in answer.content] == ["text"]


def test_a_schema_is_kept(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model=M, max_tokens=60, messages=COUNT, output_config={
        "format": {"type": "json_schema", "schema": WEATHER["input_schema"]}})  # fmt: skip
    (block,) = answer.content
    assert block.type == "text"
    jsonschema.validate(json.loads(block.text), WEATHER["input_schema"])


def test_errors_are_the_clients_own(server: Server, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model=M, max_tokens=4, messages=COUNT, extra_body={"temperature": -1})
    body: Any = refused.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == "temperature" and refused.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nope", max_tokens=4, messages=COUNT)
    long: Any = [{"role": "user", "content": "word " * 9000}]
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError, match="context"):
            client.messages.create(model=M, max_tokens=4, messages=long, stream=stream)
    assert server.post("/v1/messages/nope", {}).json()["type"] == "error"
