"""Chat messages in one shape: whatever a client may send becomes what templates read. Torch-free.

Owns the rules for content parts, missing content and tool calls. Knows no template and no tokenizer.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.base.errors import RequestError

Message = dict[str, Any]
_OWNERS = {"tool_calls": "assistant", "reasoning_content": "assistant", "tool_call_id": "tool"}  # by field


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages with a string role and a string content, without keys that are None.

    Text parts are joined in order with nothing between. An assistant turn may leave its content out, as None
    or "". A tool call's arguments become an object when they are one in JSON. RequestError names the message.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError("messages is a list of objects with role and content", param="messages")
    if not messages:
        raise RequestError("messages is empty: send at least one message", param="messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is not an object", param=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}.role is missing: it is a string like user", param=f"{where}.role")
    clean: Message = {key: value for key, value in message.items() if value is not None}
    for name, owner in _OWNERS.items():
        if clean.get(name) and role != owner:
            field = f"{where}.{name}"
            raise RequestError(f"{field} belongs to a message whose role is {owner}", param=field)
    clean["content"] = _content(message.get("content"), role, where)
    calls = clean.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise RequestError(f"{where}.tool_calls is not a list", param=f"{where}.tool_calls")
        named = [_tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
        clean["tool_calls"] = named
        if not named:
            del clean["tool_calls"]
    return clean


def _content(content: Any, role: str, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role != "assistant":
            raise RequestError(
                f"{where}.content is missing: only an assistant turn may leave it out",
                param=f"{where}.content",
            )
        return ""
    if not isinstance(content, Sequence):
        raise RequestError(f"{where}.content is neither text nor a list of parts", param=f"{where}.content")
    return "".join(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if not isinstance(part, Mapping) or kind != "text":
        raise RequestError(f"{where} is of type {kind!r:.40}: this model takes text parts only", param=where)
    for name in part.keys() - {"type", "text"}:
        field = f"{where}.{name:.80}"
        raise RequestError(f"{field}: unknown field", param=field, code="unknown_parameter")
    if not isinstance(part.get("text"), str):
        field = f"{where}.text"
        raise RequestError(f"{field} is missing: a text part holds a string there", param=field)
    return str(part["text"])


def _tool_call(call: Any, where: str) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function.name is missing", param=where)
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = {}
    elif isinstance(arguments, str):
        arguments = _object_or_text(arguments)
    kept = {key: value for key, value in call.items() if value is not None}
    return {**kept, "function": {**function, "arguments": arguments}}


def _object_or_text(text: str) -> Any:
    """Templates write arguments with tojson, so an object must not be quoted twice; other text stays."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
