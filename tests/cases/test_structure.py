"""C-01, C-02, C-14, C-20 and C-21 where the answer's structure is asked for: enforced whole, or refused."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from tests.server.process import Server

TEXT = "Grüße 👩🏽‍🚀 你好 🏳️‍🌈"
PET = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 40},
    "kind": {"enum": ["cat", "dog", "other"]}, "tags": {"type": "array", "maxItems": 2, "items": {
        "type": "string", "maxLength": 6}}},
    "required": ["name", "age", "kind", "tags"], "additionalProperties": False}  # fmt: skip


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def ask(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Describe a pet."}], "max_tokens": 80,
            "response_format": schema_format(schema), **fields}  # fmt: skip


def text_of(answer: Any, index: int = 0) -> str:
    content: str = answer["choices"][index]["message"]["content"]
    return content


@pytest.mark.parametrize("text", [TEXT, "😊", 'a "quoted"\nline', "नमस्ते"])
def test_c01_forced_text_is_whole_streamed_or_not(server: Server, text: str) -> None:
    for body in (ask({"enum": [text]}), ask({"enum": [text]}, logprobs=True, top_logprobs=3)):
        whole = server.chat(**body)
        assert json.loads(text_of(whole)) == text and whole["choices"][0]["finish_reason"] == "stop"
        events = server.events("/v1/chat/completions", body)
        pieces = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
        assert "".join(pieces) == text_of(whole) and not any("�" in piece for piece in pieces)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries if entry["token"] != "<|im_end|>") == \
        text_of(whole).encode()


def test_c12_usage_of_forced_text_is_the_same_streamed(server: Server) -> None:
    """Keys that come several tokens at once are counted one by one, whole and streamed, for each choice."""
    body = ask(PET, n=2, seed=1, temperature=0.8)
    whole = server.chat(**body)
    events = server.events("/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for index in range(2):
        pieces = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]
                  if choice["index"] == index]
        assert "".join(pieces) == text_of(whole, index)


@pytest.mark.parametrize("schema", [
    {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    {"type": "string", "pattern": "^[a-z]+$", "minLength": 5, "maxLength": 9}, PET,
    {"type": "integer", "minimum": 17, "maximum": 300, "multipleOf": 7},
    {"type": "object", "patternProperties": {"^[ab]$": {"type": "boolean"}}, "additionalProperties": False,
     "maxProperties": 2},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": [1, None]}], "items": False,
     "minItems": 2},
])  # fmt: skip
def test_c21_every_sampled_answer_obeys_the_schema(server: Server, schema: dict[str, Any]) -> None:
    def one(seed: int) -> Any:
        return server.chat(**ask(schema, temperature=1.0, seed=seed, n=2, max_tokens=120))

    with ThreadPoolExecutor(5) as threads:
        answers = list(threads.map(one, range(4 if schema is PET else 10)))
    for answer in answers:
        for index in range(2):
            assert answer["choices"][index]["finish_reason"] == "stop", answer
            jsonschema.validate(json.loads(text_of(answer, index)), schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("keyword, value", [
    ("uniqueItems", True), ("not", {"type": "null"}), ("contains", {"type": "null"}), ("minContains", 1),
    ("dependentRequired", {"a": ["b"]}), ("propertyNames", {"pattern": "^a"}), ("nullable", True),
])  # fmt: skip
def test_c21_a_keyword_that_is_not_enforced_is_named(server: Server, keyword: str, value: Any) -> None:
    for stream in (False, True):
        body = ask({"type": "object", "properties": {"a": {keyword: value}}}, stream=stream)
        answer = server.post("/v1/chat/completions", body)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == "response_format"
        assert repr(keyword) in error["message"] and "#/properties/a" in error["message"]
    assert json.loads(text_of(server.chat(**ask({"enum": [keyword]})))) == keyword


def test_other_structures_alone_and_in_company(server: Server) -> None:
    """Expressions, choices, grammars and JSON objects, in one batch with free requests, answer as alone."""
    bodies: list[dict[str, Any]] = [
        {"structured_outputs": {"regex": r"[0-9]{3}-[0-9]{4}"}}, {"guided_regex": "(yes|no)!"},
        {"structured_outputs": {"choice": ["red fox", "blue\nwhale"]}}, {"guided_choice": ["über", "unter"]},
        {"structured_outputs": {"grammar": 'start: "[" item ("," item)~2 "]"\nitem: /[a-c]/'}},
        {"structured_outputs": {"json": PET}}, {"guided_json": json.dumps(PET)},
        {"response_format": {"type": "json_object"}, "max_tokens": 200}, {},
        {"response_format": {"type": "text"}},
    ]  # fmt: skip
    bodies = [{"messages": [{"role": "user", "content": "Describe a pet."}], "max_tokens": 60} | one
              for one in bodies]
    alone = [text_of(server.chat(**body)) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as threads:
        together = [text_of(answer) for answer in threads.map(lambda body: server.chat(**body), bodies)]
    assert together == alone
    assert re.fullmatch(r"[0-9]{3}-[0-9]{4}", alone[0]) and alone[1] in ("yes!", "no!")
    assert alone[2] in ("red fox", "blue\nwhale") and alone[3] in ("über", "unter")
    assert re.fullmatch(r"\[[a-c],[a-c],[a-c]\]", alone[4])
    for text in alone[5:7]:
        jsonschema.validate(json.loads(text), PET)
    assert isinstance(json.loads(alone[7]), dict)
    assert alone[8] == alone[9]
    assert server.complete("A pet: ", max_tokens=20, guided_choice=["cat", "dog"])["choices"][0]["text"] in (
        "cat", "dog")  # fmt: skip


def test_a_stop_string_and_a_limit_cut_structured_text(server: Server) -> None:
    whole = text_of(server.chat(**ask(PET)))
    cut = server.chat(**ask(PET, stop=[whole[8:11]]))["choices"][0]
    assert cut["message"]["content"] == whole[: whole.index(whole[8:11])] and cut["finish_reason"] == "stop"
    short = server.chat(**ask(PET, max_tokens=5))["choices"][0]
    assert short["finish_reason"] == "length" and whole.startswith(short["message"]["content"])


@pytest.mark.parametrize("fields, param", [
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "lax": 1}}},
     "response_format"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format"),
    ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format"),
    ({"structured_outputs": {"regex": "(["}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "start: nobody"}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"grammar": 'start: "x" a\na: a "y"'}}, "structured_outputs.grammar"),
    ({"guided_grammar": 'start: /[xy]/ a\na: a "y"'}, "guided_grammar"),  # shows behind a choice
    ({"structured_outputs": {"grammar": 'start: <|no_such_token|> "a"'}}, "structured_outputs.grammar"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ({"guided_regex": "a", "min_tokens": 3}, "min_tokens"),
])  # fmt: skip
def test_what_cannot_be_followed_is_refused(server: Server, fields: dict[str, Any], param: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, **fields}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_grammar_that_breaks_in_a_stream_names_its_field(server: Server) -> None:
    breaks = 'start: "x" a\na: /[xy]/ b\nb: b "y"'
    for path, body in (("completions", {"prompt": "a"}),
                       ("chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        events = server.events(f"/v1/{path}", body | {"guided_grammar": breaks, "max_tokens": 9})
        assert events[0]["choices"] and events[-1]["error"]["param"] == "guided_grammar"


def test_c14_a_schema_that_nests_deep_is_refused_at_once(server: Server) -> None:
    deep = '{"properties": {"a": ' * 1000 + "{}" + "}}" * 1000
    body = json.dumps(ask("DEEP")).replace('"DEEP"', deep).encode()
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code in (400, 413) and answer.elapsed.total_seconds() < 2
