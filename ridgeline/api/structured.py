"""What a body says of the answer's structure, in OpenAI's spelling and in vLLM's, as one grammar."""

import asyncio
from typing import Any

from ridgeline.api.errors import unsupported
from ridgeline.api.types import Generate, StructuredOutputs
from ridgeline.base.errors import invalid_value
from ridgeline.frontend import structure

_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
_PARTS = {"json_schema": ("json_schema",), "structural_tag": ("structures", "triggers")}  # beside the type
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_SCHEMA_FIELDS = frozenset(("name", "description", "schema", "strict"))


async def grammar_of(request: Generate) -> str | None:
    """The grammar that the answer must match, None for free text; made beside the event loop.

    RequestError for one that is not followed whole, and when two fields ask for one each.
    """
    asked = _asked(request)
    if not asked:
        return None
    if len(asked) > 1:
        raise invalid_value(
            next(iter(asked)), f"one of {' and '.join(asked)} can be followed: leave out the others"
        )
    ((param, value),) = asked.items()
    return await asyncio.to_thread(_grammar, param, value)


def field_of(request: Generate) -> str:
    """The field that asks for the grammar which the answer follows."""
    asked = (name for name, value in _asked(request).items() if value is not False)
    return next(asked, "tools" if getattr(request, "tools", None) else "thinking_budget")


def _asked(request: Generate) -> dict[str, Any]:
    """What is asked for, by the field's name."""
    plain = request.response_format == {"type": "text"}
    parts = request.structured_outputs or StructuredOutputs()
    said = {
        "response_format": None if plain else request.response_format,
        **{f"structured_outputs.{name}": getattr(parts, name) for name in parts.__struct_fields__},
        **{name: getattr(request, name) for name in _GUIDED},
    }
    return {name: value for name, value in said.items() if value is not None}


def _grammar(param: str, value: Any) -> str | None:
    if param == "response_format":
        return _of_format(value)
    kind = param.removeprefix("structured_outputs.").removeprefix("guided_")
    if kind == "json":
        return structure.json_schema(value, param)
    if kind == "json_object":
        return structure.json_object(param) if value else None
    if kind == "regex":
        return structure.regex(value, param)
    return structure.choice(value, param) if kind == "choice" else structure.grammar(value, param)


def _of_format(given: dict[str, Any]) -> str:
    kind = given.get("type")
    if kind not in _FORMATS:
        known_types = ", ".join(_FORMATS)
        raise unsupported("response_format", f"type {kind!r:.80} is not known: use one of {known_types}")
    known = {"type", *_PARTS.get(kind, ())}
    if unknown := sorted(given.keys() - known):
        raise invalid_value("response_format", f"{unknown[0]!r:.80} does not belong to type {kind!r}")
    if kind == "json_object":
        return structure.json_object()
    if kind == "structural_tag":
        return structure.tags(_list_of(dict, given, "structures"), _list_of(str, given, "triggers"))
    wrapped = given.get("json_schema")
    if not isinstance(wrapped, dict) or "schema" not in wrapped:
        raise invalid_value("response_format", 'json_schema must be an object with "name" and "schema"')
    if unknown := sorted(wrapped.keys() - _SCHEMA_FIELDS):
        raise invalid_value("response_format", f"json_schema has no field {unknown[0]!r:.80}")
    return structure.json_schema(wrapped["schema"])


def _list_of(kind: type, given: dict[str, Any], name: str) -> list[Any]:
    found = given.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(one, kind) for one in found):
        word = "objects" if kind is dict else "texts"
        raise invalid_value("response_format", f"structural_tag needs {name}, a list of {word}")
    return found
