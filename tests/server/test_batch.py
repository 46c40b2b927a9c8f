"""Protects batches: every line gets one answer, a bad line costs the others nothing, and a second run goes
on.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.base.errors import ConfigError, EngineDeadError
from ridgeline.commands.batch import Batch
from tests.server.fake import FakeEngine, fake_api

pytestmark = pytest.mark.anyio


def _line(custom_id: str, **change: Any) -> str:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body} | change
    )


async def _run(tmp_path: Path, lines: list[str], engine_setup: Any = None) -> tuple[list[Any], FakeEngine]:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines) + "\n")
    api, engine = fake_api()
    if engine_setup:
        engine_setup(engine)
    await Batch(source, target).answer(api, 4)
    return [json.loads(line) for line in target.read_text().splitlines()], engine


async def test_answers_refusals_and_broken_lines(tmp_path: Path) -> None:
    answers, _ = await _run(tmp_path, [
        _line("a"),
        _line("b", url="/v1/completions", body={"prompt": "x", "max_tokens": 2}),
        _line("c", body={"messages": "oops"}),
        _line("d", url="/v1/moderations"),
        _line("e", body={"messages": [{"role": "user", "content": "hi"}], "stream": True}),
        _line("f", extra=1),
        "{not json",
        "",
        _line("a"),
        json.dumps({"custom_id": 5}),
    ])  # fmt: skip
    by_id = {a["custom_id"]: a for a in answers if a["custom_id"] not in ("a", None)}
    first, again = [a for a in answers if a["custom_id"] == "a"]
    assert len(answers) == 9 and len({a["id"] for a in answers}) == 9
    assert first["error"] is None and first["response"]["status_code"] == 200
    assert first["response"]["body"]["choices"][0]["message"]["content"] == "hello"
    assert again["response"] is None and again["error"]["code"] == "duplicate_custom_id"
    assert by_id["b"]["response"]["body"]["choices"][0]["text"] == "he"
    assert by_id["c"]["response"]["status_code"] == 400
    assert by_id["c"]["response"]["body"]["error"]["param"] == "messages"
    assert by_id["d"]["response"]["status_code"] == 404
    assert by_id["e"]["response"]["body"]["error"]["param"] == "stream"
    assert by_id["f"]["response"] is None and "extra" in by_id["f"]["error"]["message"]
    nameless = [a for a in answers if a["custom_id"] is None]
    assert [a["line"] for a in nameless] == [7, 10] and all("line" in a["error"]["message"] for a in nameless)


async def test_every_endpoint_that_answers_at_once_has_lines(tmp_path: Path) -> None:
    """Each refusal is a line of its own, in its dialect."""
    turns = [{"role": "user", "content": "hi"}]
    answers, _ = await _run(tmp_path, [
        _line("messages", url="/v1/messages", body={"messages": turns, "max_tokens": 3}),
        _line("cut", url="/v1/messages", body={"messages": turns}),
        _line("responses", url="/v1/responses", body={"input": "hi"}),
        _line("later", url="/v1/responses", body={"input": "hi", "background": True}),
        _line("flow", url="/v1/responses", body={"input": "hi", "stream": True}),
        _line("score", url="/v1/score", body={"pairs": [{"context": "a", "continuation": "xx"}]}),
        _line("vector", url="/v1/embeddings", body={"input": "a", "dimensions": 3}),
    ])  # fmt: skip
    told = {answer["custom_id"]: answer["response"] for answer in answers}
    assert {name for name, one in told.items() if one["status_code"] == 200} == {
        "messages", "responses", "score"}  # fmt: skip
    assert told["messages"]["body"]["content"] == [{"type": "text", "text": "hel"}]
    assert told["responses"]["body"]["output"][0]["content"][0]["text"] == "hello"
    assert told["score"]["body"]["data"][0]["logprob"] == -2.0
    assert told["cut"]["body"]["type"] == "error"
    params = {name: told[name]["body"]["error"]["param"] for name in ("cut", "later", "flow", "vector")}
    assert params == {"cut": "max_tokens", "later": "background", "flow": "stream", "vector": "dimensions"}


async def test_a_second_run_answers_only_what_is_missing(tmp_path: Path) -> None:
    """A run that was killed leaves half a line; it is cut off and its request asked again."""
    lines = [_line("a"), "{not json", _line("b"), _line("c")]
    await _run(tmp_path, lines[:2])
    target = tmp_path / "out.jsonl"
    with target.open("a") as file:
        file.write('{"id": "batch_req_x", "custom_id": "b", "resp')
    answers, engine = await _run(tmp_path, lines)
    assert {a["custom_id"] for a in answers} == {"a", None, "b", "c"} and len(answers) == 4
    assert len(engine.submitted) == 2
    assert Batch(tmp_path / "in.jsonl", target).num_todo == 0


async def test_the_engines_death_ends_the_run_and_writes_no_answer_for_it(tmp_path: Path) -> None:
    def die(engine: FakeEngine) -> None:
        engine.refuse = EngineDeadError("killed")  # type: ignore[assignment]

    with pytest.raises(EngineDeadError):
        await _run(tmp_path, [_line("a"), _line("b")], die)
    answers, _ = await _run(tmp_path, [_line("a"), _line("b")])
    assert [a["response"]["status_code"] for a in answers] == [200, 200]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        Batch(tmp_path / "missing.jsonl", tmp_path / "out.jsonl")
    source, target = tmp_path / "in.jsonl", tmp_path / "other.txt"
    source.write_text(_line("a"))
    target.write_text("notes\n")
    with pytest.raises(ConfigError, match="no batch answer"):
        Batch(source, target)
