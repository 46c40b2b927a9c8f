"""The grammar of an answer that must, or may, call tools."""

import json
from collections.abc import Sequence
from typing import Any

from ridgeline.base.errors import RequestError
from ridgeline.frontend import structure
from ridgeline.frontend.tools.call import Tool
from ridgeline.frontend.tools.formats import CallFormat

AUTO, REQUIRED = "auto", "required"


def call_grammar(tools: Sequence[Tool], form: CallFormat, *, choice: str, parallel: bool,
                 opener_id: int | None) -> str | None:
    """None where free text does: `auto` without a strict tool.

    choice: auto, required, or the name of one of the tools. parallel: several calls are allowed. opener_id:
    the opener's token where it is a control token, which only its id can stand for. RequestError for a strict
    tool whose schema is not enforced whole.
    """
    if choice == AUTO and parallel and not any(tool.strict for tool in tools):
        return None
    asked = [tool for tool in tools if choice in (AUTO, REQUIRED, tool.name)]
    more = parallel and choice in (AUTO, REQUIRED)
    opener = _text(form.opener) if opener_id is None else f"<[{opener_id}]>"
    rules = [f"args_{index}: %json {json.dumps(_arguments(tool, index))}" for index, tool in enumerate(asked)]
    body = " | ".join(f"{_text(form.before(tool.name))} args_{index}" for index, tool in enumerate(asked))
    rules.append(f"body: ({body}) {_text(form.after)}")
    again = _text(form.separator) + (f" {opener}" if form.opener and not form.listed else "") + " body"
    calls = f"body ({again})*" if more else "body"
    calls = f'"[" {calls} "]"' if form.listed else calls
    if choice != AUTO:
        rules.append(f"start: {opener if form.opener else ''} {calls}")
    elif not form.opener:
        rules += [f"start: {calls} | FREE", "FREE: /[^{](?s:.*)/ | \"\""]
    elif opener_id is not None:
        rules += [f"start: TEXT ({opener} {calls})?", "TEXT: /(?s:.*)/"]
    else:
        rules += [f"start: TEXT | head {calls}", f"head[lazy]: TEXT {opener}", "TEXT: /(?s:.*)/"]
    return structure.grammar("\n".join(rules), "tools")


def _arguments(tool: Tool, index: int) -> Any:
    """The schema of a tool's arguments; one that is not enforced whole allows any object, if it may."""
    try:
        structure.json_schema(dict(tool.parameters), f"tools[{index}].function.parameters")
    except RequestError:
        if tool.strict:
            raise
        return structure.with_layout({"type": "object"})
    return structure.with_layout(dict(tool.parameters))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
