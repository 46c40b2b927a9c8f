"""Tools in a chat whose template knows none: told in the system turn, calls written as they are read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.frontend.tools.call import Tool
from ridgeline.frontend.tools.formats import CallFormat


def knows_tools(templates: Mapping[str, str]) -> bool:
    """True when a model's own chat templates show tools."""
    return "tool_use" in templates or any("tools" in source for source in templates.values())


def with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], form: CallFormat) -> list[dict]:
    """The same chat with the tools in a system turn, past calls as text and their results as turns."""
    turns = [_turn(message, form) for message in messages]
    told = _instructions(tools, form)
    if turns and turns[0]["role"] == "system":
        turns[0]["content"] = f"{turns[0]['content']}\n\n{told}"
        return turns
    return [{"role": "system", "content": told}, *turns]


def _instructions(tools: Sequence[Tool], form: CallFormat) -> str:
    shown = "\n".join(json.dumps(tool.as_given(), ensure_ascii=False) for tool in tools)
    call = form.opener + form.before("NAME") + "{...}" + form.after
    return (f"You may call functions. Their signatures, one a line:\n{shown}\n"
            f"To call one, answer with its name and its arguments as JSON, in exactly this form:\n{call}")


def _turn(message: Mapping[str, Any], form: CallFormat) -> dict[str, Any]:
    turn = dict(message)
    calls = turn.pop("tool_calls", None)
    if calls:
        text = form.separator.join(_call(call["function"], form) for call in calls)
        turn["content"] = f"{turn['content']}\n{text}" if turn.get("content") else text
    if turn["role"] == "tool":
        turn = {"role": "user", "content": f"Result of the call:\n{turn.get('content', '')}"}
    return turn


def _call(function: Mapping[str, Any], form: CallFormat) -> str:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return form.opener + form.before(function["name"]) + text + form.after
