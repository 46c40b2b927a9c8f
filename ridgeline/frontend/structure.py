"""Structured output: what an answer must match, as one grammar in llguidance's own text form. Torch-free.

Owns which keywords of JSON Schema (draft 2020-12) are enforced: one that is not is refused, with the place
where it stands, and never ignored. Knows no tokenizer and no request; runner/grammar.py follows the grammar.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache, lru_cache
from typing import Any

from ridgeline.base.errors import RequestError

MAX_BYTES = 1 << 20  # of a grammar as text
MAX_CHOICES = 4096
_MOST_KEPT, _KEPT_BYTES = 256, 1 << 14  # grammars that were checked, and bytes of one
MAX_FORCED = 50_000  # bytes before the first choice; llguidance follows few more
BROKEN = "the grammar could not be followed any further"  # begins what the engine says of one, in an answer
# JSON as models were taught to write it, and no room for endless spaces; no \u, which would spell the name of
# a property past what is asked of that property
_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ",
                "json_allowed_escapes": '"\\bfnrt'}
_ANNOTATIONS = frozenset((
    "title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly",
    "writeOnly"))  # fmt: skip
_ONE = frozenset(("additionalProperties", "items"))  # hold a schema
_LIST = frozenset(("anyOf", "oneOf", "allOf", "prefixItems", "items"))  # hold a list of them; the last did
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions"))  # hold them by name
_VALUES = frozenset((
    "type", "enum", "const", "$ref", "required", "minProperties", "maxProperties", "minItems", "maxItems",
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf"))  # fmt: skip
# what begins with a date, the 29th of February in leap years alone: llguidance's dates have it in every year
_DATED = ("^(....-(..-([013].|2[0-8])|(0[13-9]|1.)-29)|"
          "(..(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)")
_UPPER, _LOWER = ("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")
_ENFORCED = _ONE | _LIST | _NAMED | _VALUES


def json_schema(schema: Any, param: str = "response_format") -> str:
    """The grammar of JSON texts that a schema (a dict, or its JSON text) allows. RequestError names the
    keyword that is not enforced and where it stands."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise _refused(param, f"the schema is not JSON: {error}") from None
    for place, keyword in _unknown(schema, "#"):
        raise _refused(param, f"the keyword {keyword!r} at {place} is not enforced by this server; leave it "
                              f"out. Enforced are {', '.join(sorted(_ENFORCED))}")
    for place, keyword in _unwritable(schema, "#"):
        raise _refused(param, f"{keyword!r} at {place} holds a control character that answers cannot spell")
    for place, keyword in _rounded(schema, "#"):
        raise _refused(param, f"{keyword!r} at {place} holds a whole number that is too large: answers would "
                              "be held to another one")
    for place, keyword in _loose(schema, "#"):
        raise _refused(param, f"{keyword!r} at {place} is the whole part of the other bound, and answers "
                              "could be that number: set the other bound to a whole number")
    for place, named in _too_few_named(schema, "#"):
        raise _refused(param, f"the keyword 'minProperties' at {place} is enforced up to {named + 1}, one "
                              "more than 'required' names: beyond, an answer could count a name twice")
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, Mapping):
        raise _refused(param, f"the schema is {type(schema).__name__}, not an object")
    from llguidance import LLMatcher

    try:
        made = LLMatcher.grammar_from_json_schema(json.dumps(_with_leap_years(schema)), overrides=_LAYOUT)
    except ValueError as error:  # a number that no double can hold
        raise _refused(param, str(error)) from None
    return _checked(made, param)


def with_layout(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema for `%json` in a grammar, its texts laid out as those of `json_schema`."""
    return {**_with_leap_years(schema), "x-guidance": _LAYOUT}


def json_object(param: str = "response_format") -> str:
    """The grammar of any JSON object."""
    return json_schema({"type": "object"}, param)


def regex(pattern: str, param: str = "structured_outputs.regex") -> str:
    """The grammar of texts that match a regular expression as a whole (no look-around)."""
    from llguidance import LLMatcher

    return _checked(LLMatcher.grammar_from_regex(pattern), param)


def choice(texts: Sequence[str], param: str = "structured_outputs.choice") -> str:
    """The grammar of one of several texts."""
    if not texts or len(texts) > MAX_CHOICES or not all(isinstance(text, str) and text for text in texts):
        raise _refused(param, f"must be 1 to {MAX_CHOICES} texts, none of them empty")
    return grammar("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts), param)


def grammar(lark: str, param: str = "structured_outputs.grammar") -> str:
    """A grammar in llguidance's dialect of Lark; its rule `start` is the whole text."""
    from llguidance import LLMatcher

    return _checked(LLMatcher.grammar_from_lark(lark), param)


def tags(structures: Sequence[Mapping[str, Any]], triggers: Sequence[str],
         param: str = "response_format") -> str:
    """Free text in which each trigger opens one of the structures: its "begin", a JSON text that its "schema"
    allows, its "end"."""
    from llguidance import StructTag

    made = []
    for index, one in enumerate(structures):
        where = f"{param}.structures[{index}]"
        begin, end = one.get("begin"), one.get("end")
        if set(one) != {"begin", "schema", "end"} or not isinstance(begin, str) or not isinstance(end, str):
            raise _refused(param, f"structures[{index}] must have begin, schema and end, and no more")
        json_schema(one["schema"], where)
        trigger = next((text for text in triggers if text and begin.startswith(text)), None)
        if trigger is None:
            raise _refused(param, f"structures[{index}].begin starts with none of the triggers")
        made.append(StructTag(trigger=trigger, begin=begin, grammar=with_layout(one["schema"]), end=end))
    return _checked(StructTag.to_grammar(made, assume_special=False), param)


def _checked(text: str, param: str) -> str:
    if len(text) > MAX_BYTES:
        raise _refused(param, f"is longer than {MAX_BYTES} bytes")
    if fault := (_kept_fault if len(text) <= _KEPT_BYTES else _fault)(text):
        raise _refused(param, fault[:500])
    return text


def _fault(text: str) -> str | None:
    """Why a grammar cannot be followed, as far as it shows before the first choice in it."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)
    failed, messages = LLMatcher.validate_grammar_with_warnings(text, limits=limits)
    # a warning is a keyword of which a part would be ignored; ids of tokens are checked when it is compiled
    messages = [message for message in messages if failed or not message.startswith("no tokenizer")]
    if messages:
        return "; ".join(messages).partition(". Enable 'coerce_one_of'")[0]
    probe = LLMatcher(_bytes(), text, log_level=0, limits=limits)
    if probe.is_error():
        return None  # it names tokens
    forced = probe.compute_ff_tokens()
    if len(forced) > MAX_FORCED:
        return f"says {len(forced)} bytes or more before the first choice, at most {MAX_FORCED} are allowed"
    probe.consume_tokens(forced)
    probe.compute_bitmask()
    if not probe.is_error():
        return None
    why = probe.get_error().partition("\n")[0]
    return "no text matches it" if why.startswith("NoExtension") else f"is too complex: {why}"


_kept_fault = lru_cache(_MOST_KEPT)(_fault)  # a client's schema comes again and again


@cache
def _bytes() -> Any:
    """A vocabulary of single bytes."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _parts(schema: Any, place: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """(schema, where) of each object that stands in a schema as one, itself included."""
    if not isinstance(schema, Mapping):
        return
    yield schema, place
    for keyword, value in schema.items():
        if keyword in _LIST and isinstance(value, list):
            for index, part in enumerate(value):
                yield from _parts(part, f"{place}/{keyword}/{index}")
        elif keyword in _ONE:
            yield from _parts(value, f"{place}/{keyword}")
        elif keyword in _NAMED and isinstance(value, Mapping):
            for name, part in value.items():
                yield from _parts(part, f"{place}/{keyword}/{name}")


def _with_leap_years(schema: Any) -> Any:
    """The schema with _DATED beside each format that begins with a date."""

    def dated(part: Mapping[str, Any]) -> bool:
        return part.get("format") in ("date", "date-time") and isinstance(part.get("allOf", []), list)

    if not any(dated(part) for part, _ in _parts(schema, "#")):
        return schema
    made = deepcopy(schema)
    for part, _ in _parts(made, "#"):
        if isinstance(part, dict) and dated(part):
            part["allOf"] = [*part.get("allOf", ()), {"pattern": _DATED}]
    return made


def _unknown(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    """(where, keyword) of each that is neither enforced nor an annotation."""
    for part, where in _parts(schema, place):
        for keyword in part:
            if keyword not in _ENFORCED and keyword not in _ANNOTATIONS:
                yield where, keyword


def _too_few_named(schema: Any, place: str) -> Iterator[tuple[str, int]]:
    """(where, names that are required) of each minProperties that names given twice could reach."""
    for part, where in _parts(schema, place):
        least, required = part.get("minProperties", 0), part.get("required", ())
        named = len(set(required)) if isinstance(required, list) and all(map(_is_text, required)) else 0
        if isinstance(least, int) and least > named + 1:
            yield where, named


def _unwritable(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    """(where, keyword) of each value that _LAYOUT's escapes cannot spell."""
    for part, where in _parts(schema, place):
        for keyword in ("const", "enum"):
            text = json.dumps(part.get(keyword), ensure_ascii=False).replace("\\\\", "")
            if "\\u00" in text or "\x7f" in text:
                yield where, keyword


def _rounded(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    """(where, keyword) of each whole number that a grammar takes for another one, but for bounds of integers
    which allow less by that."""
    for part, where in _parts(schema, place):
        types = part.get("type")
        whole = types == "integer" or (isinstance(types, list) and "number" not in types)
        for keyword in ("const", "enum", "multipleOf", *_UPPER, *_LOWER):
            for value in _whole_numbers(part.get(keyword)):
                less = keyword in (_UPPER if _held(value) < value else _LOWER)
                if _held(value) != value and not (whole and less):
                    yield where, keyword


def _loose(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    """(where, keyword) of each exclusive bound, a whole number n, that a grammar takes for an inclusive one:
    where the other bound is a fraction with n before its point."""
    for part, where in _parts(schema, place):
        bounds = list(_bounds(part))
        for keyword, value in bounds:
            others = _UPPER if keyword == "exclusiveMinimum" else _LOWER
            beside = (bound for other, bound in bounds if other in others)
            if keyword.startswith("exclusive") and any(int(bound) == value != bound for bound in beside):
                yield where, keyword


def _bounds(part: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Those that hold for the same number: of a schema, and of what it combines."""
    for keyword in (*_UPPER, *_LOWER):
        value = part.get(keyword)
        if value is True:  # as before draft 6
            value = part.get(keyword.removeprefix("exclusive").lower())
        if isinstance(value, int | float) and abs(value) < 2**63:
            yield keyword, value
    for keyword in ("allOf", "anyOf", "oneOf"):
        beside = part.get(keyword)
        for one in beside if isinstance(beside, list) else ():
            if isinstance(one, Mapping):
                yield from _bounds(one)


def _whole_numbers(value: Any) -> Iterator[int]:
    """Those in a JSON value."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _whole_numbers(part)


def _held(value: int) -> int:
    """A whole number as a grammar holds it: as a double, and then in 64 bits."""
    return min(max(int(float(min(max(value, -(2**64)), 2**64))), -(2**63)), 2**63 - 1)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _refused(param: str, what: str) -> RequestError:
    return RequestError(f"{param}: {what}", param=param, code="invalid_grammar")
