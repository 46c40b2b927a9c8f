"""Structured output at the door: every keyword of a schema is enforced, or refused by name and place."""

import json

import pytest

from ridgeline.base.errors import RequestError
from ridgeline.frontend import structure


@pytest.mark.parametrize("schema, keyword, place", [
    ({"type": "array", "uniqueItems": True}, "uniqueItems", "#"),
    ({"properties": {"a": {"not": {"type": "null"}}}}, "not", "#/properties/a"),
    ({"anyOf": [{"type": "null"}, {"contains": {}}]}, "contains", "#/anyOf/1"),
    ({"items": {"if": True, "then": False}}, "if", "#/items"),
    ({"$defs": {"x": {"propertyNames": {}}}, "$ref": "#/$defs/x"}, "propertyNames", "#/$defs/x"),
    ({"additionalProperties": {"unevaluatedProperties": False}}, "unevaluatedProperties",
     "#/additionalProperties"),
    ({"type": "string", "maxLenght": 3}, "maxLenght", "#"),
    ({"type": "string", "x-guidance": {"lenient": True}}, "x-guidance", "#"),
])  # fmt: skip
def test_a_keyword_that_is_not_enforced_is_refused(schema: dict, keyword: str, place: str) -> None:
    with pytest.raises(RequestError, match=f"'{keyword}' at {place.replace('$', '[$]')} is not enforced"):
        structure.json_schema(schema)
    with pytest.raises(RequestError, match=keyword):
        structure.json_schema(json.dumps(schema))


@pytest.mark.parametrize("schema", [
    {"enum": ["not", "uniqueItems", {"if": 1}]}, {"const": {"not": 1}},
    {"type": "object", "properties": {"uniqueItems": {"type": "string", "title": "not"}}},
    {"type": "object", "required": ["not"], "patternProperties": {"^not$": {"type": "integer"}}},
])  # fmt: skip
def test_the_same_words_as_values_or_names_are_not_keywords(schema: dict) -> None:
    assert structure.json_schema(schema)


@pytest.mark.parametrize("schema, part", [
    ({"type": "nope"}, "nope"), ({"minLength": -1}, "minLength"), ({"format": "zzz"}, "zzz"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "nsatisfiable"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-"), ({"$ref": "http://example.org/x"}, "example.org"),
    ("{", "not JSON"), ("[1]", "not an object"), ([], "not an object"),
])  # fmt: skip
def test_what_no_text_can_match_is_refused(schema: object, part: str) -> None:
    with pytest.raises(RequestError, match=part) as refused:
        structure.json_schema(schema, "response_format")
    assert refused.value.param == "response_format"


def test_expressions_choices_and_grammars_are_checked() -> None:
    for make in (lambda: structure.regex("(["), lambda: structure.grammar("start: nobody"),
                 lambda: structure.choice([]), lambda: structure.choice(["a", ""]),
                 lambda: structure.grammar("x" * (structure.MAX_BYTES + 1))):  # fmt: skip
        with pytest.raises(RequestError):
            make()
