"""Structured output at the door: every keyword of a schema is enforced, or refused by name and place."""

import json
from collections.abc import Callable

import pytest
from llguidance import LLMatcher, LLTokenizer

from ridgeline.base.errors import RequestError
from ridgeline.frontend import structure


@pytest.mark.parametrize("schema, keyword, place", [
    ({"type": "array", "uniqueItems": True}, "uniqueItems", "#"),
    ({"properties": {"a": {"not": {"type": "null"}}}}, "not", "#/properties/a"),
    ({"anyOf": [{"type": "null"}, {"contains": {}}]}, "contains", "#/anyOf/1"),
    ({"items": {"if": True, "then": False}}, "if", "#/items"), ({"items": [{"not": {}}]}, "not", "#/items/0"),
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
    {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},  # beyond 64 bits, but less is allowed
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"exclusiveMinimum": 0.5, "maximum": 0.6},
])  # fmt: skip
def test_the_same_words_as_values_or_names_are_not_keywords(schema: dict) -> None:
    assert structure.json_schema(schema)


@pytest.mark.parametrize("schema, part", [
    ({"type": "nope"}, "nope"), ({"minLength": -1}, "minLength"), ({"format": "zzz"}, "zzz"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "nsatisfiable"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-"), ({"$ref": "http://example.org/x"}, "example.org"),
    ({"minLength": 10**400}, "number out of range"),
    ("{", "not JSON"), ("[1]", "not an object"), ([], "not an object"),
])  # fmt: skip
def test_what_no_text_can_match_is_refused(schema: object, part: str) -> None:
    with pytest.raises(RequestError, match=part) as refused:
        structure.json_schema(schema, "response_format")
    assert refused.value.param == "response_format"


@pytest.mark.parametrize("schema, part", [
    ({"type": "object", "minProperties": 2}, "'minProperties' at # is enforced up to 1"),
    ({"items": {"required": ["a", "a"], "minProperties": 3}}, "'minProperties' at #/items is enforced up to"),
    ({"properties": {"a": {"enum": ["b", {"\x01": 1}]}}}, "'enum' at #/properties/a holds"),
    ({"type": "integer", "maximum": 2**53 + 3}, "'maximum' at # holds"),  # as a double it is one more
    ({"exclusiveMinimum": 0, "maximum": 0.5}, "'exclusiveMinimum' at # is the whole part"),
    ({"allOf": [{"minimum": -3.5}, {"exclusiveMaximum": -3}]}, "'exclusiveMaximum' at # is the whole part"),
    ({"items": [{"minimum": 10**19}]}, "'minimum' at #/items/0 holds"), ({"const": [2**63 + 1]}, "'const'"),
    ({"const": "\\ \x1f"}, "'const' at # holds"), ({"enum": [1, "\x7f"]}, "'enum' at # holds"),
])  # fmt: skip
def test_what_answers_could_get_past_is_refused(schema: dict, part: str) -> None:
    with pytest.raises(RequestError, match=part):
        structure.json_schema(schema)


@pytest.mark.parametrize("schema, good, bad", [
    ({"properties": {"a": {"type": "string"}}}, '{"b": 3}', '{"\\u0061": 3}'),  # another spelling of "a"
    ({"required": ["a"], "properties": {"a": {}}, "minProperties": 2}, '{"a": 1, "b": 2}', '{"a": 1}'),
    ({"properties": {"a": {}}}, '{"b": "\\n \\" \\\\"}', '{"b": "\\u0000"}'),
    ({"const": "\\u0001 \n é"}, '"\\\\u0001 \\n é"', '"u0001'),
    ({"format": "date"}, '"2024-02-29"', '"1900-02-29"'),
    ({"format": "date"}, '"2023-12-29"', '"2023-02-29"'),
    ({"items": {"format": "date-time", "allOf": [{"pattern": "Z$"}]}}, '["2000-02-29T01:02:03Z"]',
     '["2001-02-29T01:02:03Z"]'),
])  # fmt: skip
def test_what_answers_may_be_and_what_they_may_not(schema: dict, good: str, bad: str) -> None:
    for text, follows in ((good, True), (bad, False)):
        for grammar in (structure.json_schema(schema),
                        structure.grammar(f"start: %json {json.dumps(structure.with_layout(schema))}")):
            matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
            whole = matcher.try_consume_tokens(list(text.encode())) == len(text.encode())
            assert (whole and matcher.is_accepting()) == follows, text


_SELF = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
_NESTED = {"type": "object", "properties": {"b": {"$ref": "#/$defs/a"}}, "required": ["b"]}


@pytest.mark.parametrize("make, part", [
    (lambda: structure.json_schema(_SELF), "no text matches"),
    (lambda: structure.json_schema({"$ref": "#"}), "no text"),
    (lambda: structure.json_schema({**_SELF, "$defs": {"a": _NESTED}}), "before the first choice"),
    (lambda: structure.grammar('start: "x" b\nb: b "a"'), "no text"),
    (lambda: structure.regex("a[^\\s\\S]"), "no text"),
    (lambda: structure.json_schema({"type": "object", "properties": {str(i): True for i in range(700)}}),
     "too complex"),
])  # fmt: skip
def test_a_grammar_without_an_end_is_refused(make: Callable[[], str], part: str) -> None:
    """It is a mistake of whoever asks, not a failure of the engine."""
    with pytest.raises(RequestError, match=part):
        make()
    optional = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    assert structure.json_schema(optional) and structure.grammar('start: <[3]> "a"')


def test_expressions_choices_and_grammars_are_checked() -> None:
    for make in (lambda: structure.regex("(["), lambda: structure.grammar("start: nobody"),
                 lambda: structure.choice([]), lambda: structure.choice(["a", ""]),
                 lambda: structure.grammar("x" * (structure.MAX_BYTES + 1))):  # fmt: skip
        with pytest.raises(RequestError):
            make()


def test_tags_shape_what_a_trigger_opens_and_nothing_else() -> None:
    """A tag's text may stand anywhere in free text, any number of times; once begun it must be whole."""
    grammar = structure.tags([
        {"begin": "<f=add>", "schema": {"type": "array", "items": {"type": "integer"}}, "end": "</f>"},
        {"begin": "<f=now>", "schema": {"const": 1}, "end": "</f>"}], ["<f="])  # fmt: skip
    tokenizer = LLTokenizer("byte")
    for text, ends in (
        ("free text, <b> too", True), ("<f=now>1</f>", True), ("a <f=add>[1, 2]</f> b <f=now>1</f> c", True),
        ("<f=add>[1, 2]</f", False), ("<f=now>2", None), ("<f=other>", None), ("<f=add>[1,", False),
    ):  # fmt: skip
        matcher = LLMatcher(tokenizer, grammar, log_level=0)
        followed = matcher.try_consume_tokens(list(text.encode())) == len(text)
        assert followed == (ends is not None), text
        assert not followed or matcher.is_accepting() == ends, text


@pytest.mark.parametrize("structures, triggers, part", [
    ([{"begin": "<a>", "schema": {}}], ["<a"], "structures.0."),
    ([{"begin": "<a>", "schema": {}, "end": ""}], ["<b"], "none of the triggers"),
    ([{"begin": "<a>", "schema": {"not": {}}, "end": ""}], ["<a"], "'not' at #"),
])  # fmt: skip
def test_tags_that_cannot_be_followed(structures: list, triggers: list, part: str) -> None:
    with pytest.raises(RequestError, match=part):
        structure.tags(structures, triggers)
