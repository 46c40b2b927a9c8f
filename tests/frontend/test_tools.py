"""Tool calls: what a text is read as does not hang on its pieces, and a grammar's text is read back whole."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.base.errors import RequestError
from ridgeline.frontend.tools.call import read_tools
from ridgeline.frontend.tools.formats import FORMATS, HERMES, LLAMA, MISTRAL, CallFormat, format_of
from ridgeline.frontend.tools.grammar import call_grammar
from ridgeline.frontend.tools.prompt import knows_tools, with_tools
from ridgeline.frontend.tools.reader import CallReader

Read = tuple[str, list[tuple[str, str]]]


def read(form: CallFormat, pieces: list[str]) -> Read:
    """(content, [(name, arguments)]) of a text in pieces; a call's first event alone has its name."""
    reader, content, calls = CallReader(form), "", list[list[str]]()
    events = [event for piece in pieces for event in reader.feed(piece)] + list(reader.finish())
    for event in events:
        content += event.text
        if event.call is not None:
            if event.name is not None:
                assert event.call == len(calls), "calls are counted in order"
                calls.append([event.name, ""])
            calls[event.call][1] += event.arguments
    return content, [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize("form, text, content, calls", [
    (HERMES, "Sure. <tool_call>\n"
             '{"name": "f", "arguments": {"a": "x}\\"y", "b": [1, {"c": 2}]}}\n</tool_call>\n'
             '<tool_call>{"arguments": {"q": 1}, "name": "g"}</tool_call> bye <tool', "Sure. bye <tool",
     [("f", '{"a": "x}\\"y", "b": [1, {"c": 2}]}'), ("g", '{"q": 1}')]),
    (HERMES, "<tool_call>\nnot json</tool_call>", "<tool_call>\nnot json</tool_call>", []),
    (HERMES, '<tool_call>{"foo": 1}</tool_call>', '<tool_call>{"foo": 1}</tool_call>', []),
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
    (HERMES, '<tool_call>\n{"name": "f', '<tool_call>\n{"name": "f', []),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    (HERMES, "a < b <tool> <<tool_call", "a < b <tool> <<tool_call", []),
    (LLAMA, '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', "",
     [("f", '{"a": 1}'), ("g", "{}")]),
    (LLAMA, 'text {"name": "f", "parameters": {}}', 'text {"name": "f", "parameters": {}}', []),
    (LLAMA, '  {"a": 1} and', '  {"a": 1} and', []),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]', "",
     [("f", '{"a": 1}'), ("g", "{}")]),
    (MISTRAL, 'ok [TOOL_CALLS]f{"a": {"b": "}"}}[TOOL_CALLS]g{}', "ok ",
     [("f", '{"a": {"b": "}"}}'), ("g", "{}")]),
])  # fmt: skip
def test_texts_as_models_write_them(form: CallFormat, text: str, content: str, calls: list[Any]) -> None:
    for size in (1, 2, 3, 7, len(text)):
        assert read(form, [text[at: at + size] for at in range(0, len(text), size)]) == (content, calls)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
                        st.text(max_size=4), inner, max_size=2), max_leaves=4)  # fmt: skip
CALLS = st.lists(st.tuples(st.sampled_from(["f", "get_weather", "a.b-c"]),
                           st.dictionaries(st.text(max_size=5), JSON, max_size=3)), min_size=1, max_size=3)


def written(form: CallFormat, calls: list[tuple[str, Any]]) -> str:
    texts = [form.before(name) + json.dumps(arguments, ensure_ascii=False) + form.after
             for name, arguments in calls]
    if form.listed:
        return form.opener + "[" + form.separator.join(texts) + "]"
    return form.separator.join(form.opener + text for text in texts)


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL])
def test_a_call_that_must_come_is_never_text(form: CallFormat) -> None:
    """Wherever it breaks off, also before its name is known."""
    whole = form.opener + ("[" if form.listed else "") + form.before("f") + "{}" + form.after
    for end in range(len(whole) + 1):
        assert read(replace(form, forced=True), [whole[:end]])[0] == ""
    assert read(form, [whole[:9]])[0] == whole[:9], "one that may come is what was written"


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL])
def test_a_call_that_breaks_off_is_known(form: CallFormat) -> None:
    text = written(form, [("f", {}), ("f", {"a": {"b": 1}})])
    for end, broke_off in ((0, False), (text.index("}") + 1, False), (text.rindex("1"), True), (None, False)):
        reader = CallReader(form)
        list(reader.feed(text[:end]))
        assert reader.broke_off is broke_off


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(FORMATS)), calls=CALLS, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_whatever_is_written_is_read_back_in_any_pieces(name: str, calls: list[Any], cuts: list[int]) -> None:
    form = FORMATS[name]
    text = written(form, calls)
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    content, found = read(form, [text[a:b] for a, b in pairwise(places)])
    assert not content and [(call, json.loads(arguments)) for call, arguments in found] == calls


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(FORMATS)), cuts=st.lists(st.integers(0, 60), max_size=6),
       text=st.text(alphabet='<tool_call>/{}":,[]TOOL_CALLSname \n\\f', max_size=60))
def test_any_text_is_read_alike_in_any_pieces(name: str, cuts: list[int], text: str) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    form = FORMATS[name]
    assert read(form, [text[a:b] for a, b in pairwise(places)]) == read(form, [text])


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


@pytest.mark.parametrize("given_tools, where", [
    ([{"type": "retrieval"}], r"tools\[0\]"), ([{"type": "function"}], r"tools\[0\]"),
    ([tool("a b")], "name"), ([tool("f"), tool("f")], r"tools\[1\].function.name"),
    ([tool("f", parameters=[])], "parameters"), ([tool("f", returns={})], "returns"),
    ([tool("f", parameters={"type": "string"})], "of an object"), ([{"name": "f", **tool("f")}], "'name'"),
    ([tool("f", strict="yes")], "strict"), ([tool("f", description=3)], "description"),
    ([tool(f"f{i}") for i in range(129)], "129 tools"),
])  # fmt: skip
def test_tools_that_make_no_sense_are_refused(given_tools: list[Any], where: str) -> None:
    with pytest.raises(RequestError, match=where):
        read_tools(given_tools)


def test_a_strict_tool_is_enforced_whole_or_refused_and_another_falls_back() -> None:
    odd = {"type": "object", "properties": {"a": {"not": {}}}}
    lax = read_tools([tool("f", parameters=odd)])
    strict = read_tools([tool("f", parameters=odd, strict=True)])
    for form in FORMATS:
        assert call_grammar(lax, FORMATS[form], choice="required", parallel=True, opener_id=None)
        with pytest.raises(RequestError, match=r"tools\[0\].function.parameters.*'not'"):
            call_grammar(strict, FORMATS[form], choice="auto", parallel=True, opener_id=None)
        assert call_grammar(lax, FORMATS[form], choice="auto", parallel=True, opener_id=None) is None
        assert call_grammar(lax, FORMATS[form], choice="auto", parallel=False, opener_id=5)


def test_formats_are_known_by_the_template_and_tools_told_where_it_knows_none() -> None:
    assert format_of({"default": "{{ tools }} <tool_call>"}) is HERMES
    assert format_of({"default": "[TOOL_CALLS]"}) is MISTRAL
    assert format_of({"default": "<|python_tag|>"}) is LLAMA and format_of({}) is HERMES
    assert knows_tools({"default": "{% if tools %}"}) and not knows_tools({"default": "{{ messages }}"})
    tools = read_tools([tool("f", description="does it")])
    past = [{"role": "user", "content": "go"},
            {"role": "assistant", "content": "",
             "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "content": "42", "tool_call_id": "x"}]  # fmt: skip
    turns = with_tools(past, tools, HERMES)
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    assert "does it" in turns[0]["content"] and "42" in turns[3]["content"]
    assert read(HERMES, [turns[2]["content"]]) == ("", [("f", '{"a": 1}')])
    kind = with_tools([{"role": "system", "content": "be kind"}], tools, HERMES)
    assert len(kind) == 1 and kind[0]["content"].startswith("be kind")
