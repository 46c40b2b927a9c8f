"""C-22 and neighbours: tool calls over HTTP, streamed and not, by OpenAI's client too."""

import json
from typing import Any

import jsonschema
import pytest

from tests.server.process import Server

WEATHER = {"type": "object", "properties": {
    "city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]},
    "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "unit", "days"], "additionalProperties": False}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
        "a": {"type": "integer", "maximum": 99}, "b": {"type": "integer", "maximum": 99}},
        "required": ["a", "b"], "additionalProperties": False}, "strict": True}},
]  # fmt: skip
NAMED = {"type": "function", "function": {"name": "get_weather"}}
USER = [{"role": "user", "content": "What is the weather in Paris?"}]


def ask(**fields: Any) -> dict[str, Any]:
    return {"messages": USER, "tools": TOOLS, "max_tokens": 90, "temperature": 0, **fields}


@pytest.mark.parametrize("choice", [NAMED, "required"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_c22_streamed_deltas_join_to_the_call(server: Server, choice: Any, temperature: float) -> None:
    body = ask(tool_choice=choice, temperature=temperature, seed=5, parallel_tool_calls=False)
    whole = server.chat(**body)["choices"][0]
    (call,) = whole["message"]["tool_calls"]
    assert whole["message"]["content"] is None and whole["finish_reason"] == "tool_calls"
    assert call["id"] and call["type"] == "function" and call["function"]["name"] in ("get_weather", "add")
    schema = next(one["function"]["parameters"] for one in TOOLS
                  if one["function"]["name"] == call["function"]["name"])
    jsonschema.validate(json.loads(call["function"]["arguments"]), schema)

    choices = [choice for event in server.events("/v1/chat/completions", body) for choice in event["choices"]]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["tool_calls"]
    assert choices[-1]["finish_reason"] == "tool_calls"
    deltas = [delta for c in choices for delta in c["delta"].get("tool_calls") or ()]
    assert deltas[0]["index"] == 0 and deltas[0]["id"] and deltas[0]["type"] == "function"
    assert deltas[0]["function"]["name"] == call["function"]["name"]
    for delta in deltas[1:]:
        assert set(delta) == {"index", "function"} and set(delta["function"]) == {"arguments"}
    assert "".join(delta["function"]["arguments"] for delta in deltas) == call["function"]["arguments"]
    assert not "".join(c["delta"].get("content") or "" for c in choices)


def test_a_stop_string_within_a_call_ends_it_as_a_text(server: Server) -> None:
    """And not as a call to make: its arguments are no JSON."""
    body = ask(tool_choice=NAMED, stop='"city"')
    whole = server.chat(**body)["choices"][0]
    events = server.events("/v1/chat/completions", body)
    streamed = [choice["finish_reason"] for event in events for choice in event["choices"]][-1]
    assert whole["message"]["tool_calls"][0]["function"]["arguments"].strip() == "{"
    assert (whole["finish_reason"], whole["stop_reason"], streamed) == ("stop", '"city"', "stop")


def test_openais_client_reads_both(server: Server) -> None:
    client: Any = server.openai()
    body = ask(model=client.models.list().data[0].id, tool_choice="required")
    whole = client.chat.completions.create(**body)
    calls = whole.choices[0].message.tool_calls
    assert calls and len({call.id for call in calls}) == len(calls)
    with client.chat.completions.stream(**body) as stream:
        final = stream.get_final_completion()
    read = final.choices[0].message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in read] == [
        (c.function.name, c.function.arguments) for c in calls]  # fmt: skip


def test_a_whole_conversation_with_a_result(server: Server) -> None:
    call = server.chat(**ask(tool_choice=NAMED))["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "18 degrees, sunny"}
    more = ask(messages=[*USER, call, result], tool_choice="none")
    answer = server.chat(**more)["choices"][0]
    assert "tool_calls" not in answer["message"] and isinstance(answer["message"]["content"], str)
    seen = server.chat(**{**more, "tool_choice": "auto"})["usage"]["prompt_tokens"]
    assert seen > server.chat(**more)["usage"]["prompt_tokens"] + 50, "auto shows the tools to the model"


@pytest.mark.parametrize("fields, param", [
    ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
    ({"tool_choice": "always"}, "tool_choice"), ({"tool_choice": {"name": "add"}}, "tool_choice"),
    ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {"name": "bad name"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]},
     "tools[0].function.parameters"),
    ({"response_format": {"type": "json_object"}}, "tools"),
])  # fmt: skip
def test_tools_that_make_no_sense_are_refused(server: Server, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        error = server.refused("/v1/chat/completions", json.dumps(ask(**fields, stream=stream)).encode(), 400)
        assert error["param"] == param
