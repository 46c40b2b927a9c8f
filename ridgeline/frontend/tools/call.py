"""A tool as a client offers it, and the events that a model's text is read as."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.base.errors import invalid_value

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """parameters: a JSON schema of the arguments, an object. strict: calls must obey it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool

    def as_given(self) -> dict[str, Any]:
        """In OpenAI's form, which chat templates read."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a piece of text adds. text: of the answer itself; reasoning: of the thoughts before it. call: the
    number of the call that name (once, first) and arguments (in pieces) belong to."""

    text: str = ""
    reasoning: str = ""
    call: int | None = None
    name: str | None = None
    arguments: str = ""


def read_tools(given: Sequence[Any] | None) -> list[Tool]:
    """The tools of a body. RequestError names the one at fault."""
    tools: list[Tool] = []
    if given and len(given) > MAX_TOOLS:
        raise invalid_value("tools", f"{len(given)} tools, at most {MAX_TOOLS} are allowed")
    for index, one in enumerate(given or ()):
        where = f"tools[{index}]"
        if not isinstance(one, Mapping) or one.get("type") != "function":
            raise invalid_value(where, 'must be an object of type "function"')
        if unknown := sorted(set(map(str, one)) - {"type", "function"}):
            raise invalid_value(where, f"there is no field {unknown[0]!r:.80}")
        function = one.get("function")
        if not isinstance(function, Mapping):
            raise invalid_value(where, "function must be an object with a name")
        if unknown := sorted(set(map(str, function)) - {"name", "description", "parameters", "strict"}):
            raise invalid_value(f"{where}.function", f"there is no field {unknown[0]!r:.80}")
        name, description = function.get("name"), function.get("description") or ""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise invalid_value(f"{where}.function.name", "must be 1 to 64 letters, digits, dots, _ or -")
        if any(tool.name == name for tool in tools):
            raise invalid_value(f"{where}.function.name", f"{name!r} is there twice")
        parameters = function.get("parameters")
        parameters = {"type": "object", "properties": {}} if parameters is None else parameters
        if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
            raise invalid_value(f"{where}.function.parameters", "must be the JSON schema of an object")
        if not isinstance(description, str):
            raise invalid_value(f"{where}.function.description", "must be a text")
        if not isinstance(function.get("strict"), bool | None):
            raise invalid_value(f"{where}.function.strict", "must be true or false")
        tools.append(Tool(name=name, description=description, parameters=parameters,
                          strict=bool(function.get("strict"))))
    return tools
