"""Protects what a key may use: a minute's worth that flows back, a debt that is paid, requests at once;
refusals in each dialect's form, that cost nobody else anything; and files that hold digests alone."""

import argparse
import asyncio
import io
import json
import logging
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from ridgeline.api.openai import OpenAI
from ridgeline.base.clock import VirtualClock
from ridgeline.base.errors import ConfigError, RequestError
from ridgeline.cli import main
from ridgeline.commands import serve
from ridgeline.frontend.files import text_from_gguf
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from ridgeline.server.keys import Key, Keys, digest_of, new_key, plain, read_keys
from ridgeline.server.quota import KINDS, Quota
from tests.frontend.vocabularies import byte_level_metadata
from tests.server.asgi import Got, call
from tests.server.fake import TEMPLATE, FakeEngine, fake_api
from tests.server.test_messages import thinking_api

pytestmark = pytest.mark.anyio
ASK = b'{"prompt": "a", "max_tokens": 2}'


def _quota(clock: VirtualClock, **limits: int) -> Quota:
    return Quota(replace(plain("a"), **limits), clock, dict.fromkeys(KINDS, 0))


def test_a_minutes_requests_flow_back_evenly() -> None:
    clock = VirtualClock()
    quota = _quota(clock, requests_per_minute=6)
    for _ in range(6):
        quota.enter()
    for now, wait_s in ((0.0, 10.0), (4.0, 6.0), (9.0, 1.0)):
        clock.advance_to(now)
        with pytest.raises(RequestError) as refused:
            quota.enter()
        assert refused.value.status == 429 and refused.value.retry_after_s == pytest.approx(wait_s)
    clock.advance_to(10.0)
    quota.enter()
    clock.advance_to(1e6)  # an hour away brings no more than a minute's worth
    for _ in range(6):
        quota.enter()
    with pytest.raises(RequestError):
        quota.enter()


def test_a_debt_of_tokens_is_paid_before_the_next_request() -> None:
    """The mean over a long time is the limit, however large each request is."""
    clock = VirtualClock()
    quota, used, now = _quota(clock, tokens_per_minute=600), 0, 0.0
    while now < 3600.0:
        try:
            quota.enter()
            quota.spend(700)
            used += 700
        except RequestError as refused:
            assert refused.retry_after_s and "600 tokens a minute" in str(refused)
            now += refused.retry_after_s + 1e-6
            clock.advance_to(now)
    assert 600 * 60 <= used <= 600 * 61 + 700


def test_requests_at_once() -> None:
    quota = _quota(VirtualClock(), max_concurrent=2)
    quota.enter()
    quota.enter()
    with pytest.raises(RequestError, match="2 requests at work"):
        quota.enter()
    quota.leave()
    quota.enter()


def _app(clock: VirtualClock, **limits: int) -> tuple[ASGIApp, OpenAI, FakeEngine]:
    """Key "a" has the limits, key "b" has none."""
    api, engine = fake_api()
    keys = Keys([replace(plain("a"), name="anna", **limits), plain("b")], clock)
    return build_app(api, Health(engine, VirtualClock(), 30.0), keys=keys), api, engine


async def _ask(app: ASGIApp, key: str, path: str = "/v1/completions", body: bytes = ASK, **more: Any) -> Got:
    return await call(app, "POST", path, body, {"authorization": f"Bearer {key}"}, **more)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses",
                                  "/v1/embeddings", "/tokenize"])
async def test_a_refusal_has_the_form_of_its_dialect(path: str) -> None:
    """429 with Retry-After, before the body is looked at; the other key goes on, and metrics count it."""
    clock = VirtualClock()
    app, api, engine = _app(clock, requests_per_minute=1)
    assert (await _ask(app, "a")).status == 200
    got = await _ask(app, "a", path, b"not even JSON")
    assert got.status == 429 and got.headers["retry-after"] == "60" and got.headers["x-request-id"]
    error = got.json["error"]
    assert error["type"] == "rate_limit_error" and "1 requests a minute" in error["message"]
    assert error["code"] == "rate_limit_exceeded"
    assert got.json.get("type") == ("error" if path == "/v1/messages" else None)
    assert len(engine.submitted) == 1 and not api.admission.num_active
    assert (await _ask(app, "b")).status == 200
    assert (await call(app, "GET", "/v1/models", headers={"authorization": "Bearer a"})).status == 200
    text = (await call(app, "GET", "/metrics", headers={"authorization": "Bearer a"})).body.decode()
    assert 'ridgeline:requests_limited_total{model_name="m",engine="0",limit="requests"} 1\n' in text
    assert 'limit="tokens"} 0\n' in text
    clock.advance_to(60.0)
    assert (await _ask(app, "a")).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_prompts_and_answers_count(stream: bool) -> None:
    clock = VirtualClock()
    app, _, _ = _app(clock, tokens_per_minute=8)
    body = json.dumps({"prompt": [5] * 6, "max_tokens": 5, "stream": stream}).encode()
    assert (await _ask(app, "a", body=body)).status == 200  # 11 of 8
    got = await _ask(app, "a", body=body)
    assert got.status == 429 and got.headers["retry-after"] == "30"  # 4 tokens at 8 a minute
    clock.advance_to(31.0)
    assert (await _ask(app, "a", body=body)).status == 200


def _limits(got: Got) -> dict[str, str]:
    begin = "x-ratelimit-"
    return {name.removeprefix(begin): value for name, value in got.headers.items() if name.startswith(begin)}


async def test_answers_tell_what_is_left() -> None:
    """By OpenAI's headers, on the refusal too; a limit that a key has not is not told."""
    clock = VirtualClock()
    app, api, engine = _app(clock, requests_per_minute=2, tokens_per_minute=1000)
    body = json.dumps({"prompt": [5] * 40, "max_tokens": 2}).encode()
    assert _limits(await _ask(app, "a", body=body)) == {
        "limit-requests": "2", "remaining-requests": "1", "reset-requests": "30s",
        "limit-tokens": "1000", "remaining-tokens": "958", "reset-tokens": "2.52s"}
    clock.advance_to(2.51)
    refused = [_limits(await _ask(app, "a", body=b"{}")) for _ in range(2)]
    assert [one["reset-requests"] for one in refused] == ["57.49s", "57.49s"]
    assert refused[1]["remaining-requests"] == "0" and refused[1]["reset-tokens"] == "10ms"
    assert not _limits(await _ask(app, "b"))
    pages = build_app(api, Health(engine, VirtualClock(), 30.0), keys=Keys(), origins=("http://a",))
    seen = (await call(pages, "GET", "/health", headers={"origin": "http://a"})).headers
    exposed = seen["access-control-expose-headers"].split(", ")
    assert {f"x-ratelimit-{name}" for name in ("limit-requests", "reset-tokens")} < set(exposed)
    few, _, _ = _app(clock, requests_per_minute=1)
    assert _limits(await _ask(few, "a")) == {
        "limit-requests": "1", "remaining-requests": "0", "reset-requests": "1m0s"}


async def test_many_at_once_cannot_share_one_last_token() -> None:
    """All pass the door before any prompt is counted: the count itself refuses."""
    app, api, engine = _app(VirtualClock(), tokens_per_minute=5)
    engine.gate = asyncio.Event()
    body = json.dumps({"prompt": [5] * 5, "max_tokens": 1}).encode()
    tasks = [asyncio.create_task(_ask(app, "a", body=body)) for _ in range(20)]
    while sum(task.done() for task in tasks) < 19:
        await asyncio.sleep(0)
    engine.gate.set()
    got = [await task for task in tasks]
    assert sorted(one.status for one in got) == [200] + [429] * 19 and len(engine.submitted) == 1
    assert all(one.headers["retry-after"] for one in got if one.status == 429)
    assert not api.admission.num_active


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_stream_holds_its_place_until_it_ends_or_its_client_leaves(leaves: bool) -> None:
    app, _, engine = _app(VirtualClock(), max_concurrent=1)
    engine.gate, gone = asyncio.Event(), asyncio.Event()
    body = b'{"prompt": "a", "stream": true}'
    first = asyncio.create_task(_ask(app, "a", body=body, gone=gone))
    while not engine.open:
        await asyncio.sleep(0)
    got = await _ask(app, "a", body=body)
    assert got.status == 429 and got.headers["retry-after"] == "1"
    cancel = await _ask(app, "a", "/v1/responses/x/cancel")
    assert cancel.status == 404, "who ends work is let through"
    (gone if leaves else engine.gate).set()
    await first
    engine.gate.set()
    assert (await _ask(app, "a", body=body)).status == 200


@pytest.mark.parametrize(("asked", "cap", "holds"),
                         [(None, 5, 5), (3, 5, 3), (9, 5, 5), (9, None, 9), (4, 0, 0)])
async def test_a_thought_keeps_to_the_smaller_budget(asked: int | None, cap: int | None, holds: int) -> None:
    api, engine = thinking_api("hello")
    tokens = byte_level_metadata()
    tokens["tokenizer.ggml.tokens"] = [*tokens["tokenizer.ggml.tokens"], "<think>", "</think>"]
    tokens["tokenizer.ggml.token_type"] = [*tokens["tokenizer.ggml.token_type"], 3, 3]
    text = text_from_gguf({**tokens, "tokenizer.chat_template": TEMPLATE})
    api.served = replace(api.served, text=text, vocab_size=261)
    keys = Keys([replace(plain("a"), thinking_budget=cap)])
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=keys)
    body = {"messages": [{"role": "user", "content": "hi"}], "thinking_budget": asked}
    got = await _ask(app, "a", "/v1/chat/completions", json.dumps(body).encode())
    assert got.status == 200, got.body
    grammar = engine.submitted[0][1].grammar or ""
    assert (f"max_tokens={holds}]" in grammar) == (holds > 0) and "thoughts" in grammar


@pytest.mark.parametrize(("words", "may"), [
    ([], [403, 200]), (["--api-key", "aa"], [200]), (["--api-key", "aa", "--api-key", "bb"], [403, 403]),
])  # fmt: skip
async def test_only_admins_change_what_is_served(words: list[str], may: list[int], tmp_path: Path) -> None:
    """Loading an adapter: by a key whose table says so, or by the only one that the command line gives."""
    if not words:
        path = tmp_path / "keys.toml"
        path.write_text('[[key]]\nkey = "aa"\n[[key]]\nkey = "bb"\nadmin = true\n')
        words = ["--api-key-file", str(path)]
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    api, engine = fake_api()
    keys = Keys(serve.keys_of(parser.parse_args(words)))
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=keys)
    for key, status in zip(("aa", "bb"), may, strict=False):
        got = await _ask(app, key, "/v1/load_lora_adapter", b'{"lora_name": "x", "lora_path": "y"}')
        assert got.status == status, got.body
        if status == 403:
            error = got.json["error"]
            assert error["code"] == "admin_needed" and "admin = true" in error["message"]


# ---- files and the command

TOML = """
[[key]]
digest = "{digest}"
name = "anna"
priority = -5
requests_per_minute = 60
tokens_per_minute = 100_000
max_concurrent = 4
thinking_budget = 0
admin = true

[[key]]  # no limits
key = "as-it-is"
"""


def test_a_file_in_toml(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every field; a key that stands there as it is works, and the log says once how to hash it."""
    path = tmp_path / "keys.toml"
    path.write_text(TOML.format(digest=digest_of(b"secret")))
    with caplog.at_level(logging.WARNING):
        anna, bare = read_keys(path)
    assert anna == Key(digest=digest_of(b"secret"), name="anna", priority=-5, requests_per_minute=60,
                       tokens_per_minute=100_000, max_concurrent=4, thinking_budget=0, admin=True)
    assert bare == plain("as-it-is") and bare.tenant in bare.digest and anna.tenant == "anna"
    (warning,) = caplog.messages
    assert "ridgeline key hash" in warning and "holds 1 API keys" in warning and "as-it-is" not in warning
    found = Keys([anna, bare]).caller({b"x-api-key": b"secret"}, "id")
    assert found is not None and found[0].tenant == "anna" and found[0].thinking_budget == 0


def test_lines_may_hold_digests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{digest_of(b'secret')} 3\n")
    assert read_keys(path) == [replace(plain("secret"), priority=3)] and not caplog.messages


@pytest.mark.parametrize(("text", "says"), [
    ('[[key]]\nkey = "hush"\nrequests_per_minut = 5', "did you mean 'requests_per_minute'"),
    ('[[key]]\nkey = "hush"\nmax_concurrent = 0', "at least 1"),
    ('[[key]]\nkey = "hush"\nmax_concurrent = true', "whole number"),
    ('[[key]]\nkey = "hush"\ntokens_per_minute = 1.5', "whole number"),
    ('[[key]]\nkey = "hush"\nadmin = 1', "true or false"),
    ('[[key]]\nkey = "hush"\nname = "a b"', "name must be"),
    ('[[key]]\nkey = "hush hush"', "without spaces"),
    ('[[key]]\nname = "a"', "either key or digest"),
    ('[[key]]\nkey = "hush"\ndigest = "sha256:00"', "either key or digest"),
    ('[[key]]\ndigest = "sha256:00"', "64 hex digits"),
    ('[[key]]\nkey = "hush"\n[[key]]\nkey = "hush"', "was there before"),
    ('[[key]]\nkey = "hush"\nname = "a"\n[[key]]\nkey = "b"\nname = "a"', "was there before"),
    ('[[keys]]\nkey = "hush"', "and nothing else"),
    ('key = "hush"', "expected a table"),
    ("[[key]", "not TOML"),
])  # fmt: skip
def test_mistakes_in_toml_are_told_and_show_no_key(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_keys(path)
    assert says in str(error.value) and str(path) in str(error.value) and "hush" not in str(error.value)


def test_the_command_makes_a_table_that_the_file_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key goes to the terminal alone; what goes into the file cannot be turned back into it."""
    words = ["--name", "anna", "--tokens-per-minute", "100k", "--thinking-budget", "0", "--priority", "-1",
             "--admin"]
    assert main(["key", "new", *words]) == 0
    said = capsys.readouterr()
    key = said.err.split()[-1]
    path = tmp_path / "keys.toml"
    path.write_text(said.out)
    assert key not in said.out and len(key) > 40 and tomllib.loads(said.out)["key"][0]["name"] == "anna"
    assert read_keys(path) == [replace(plain(key), name="anna", tokens_per_minute=100 * 1024,
                                       thinking_budget=0, priority=-1, admin=True)]
    assert len({new_key() for _ in range(100)}) == 100


def test_a_key_that_is_there_is_hashed_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a-key-of-twenty-characters\n"))
    assert main(["key", "hash"]) == 0
    assert capsys.readouterr().out == plain("a-key-of-twenty-characters").as_toml() + "\n"
    for wrong in ("short\n", "", "with space in it, twenty\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(wrong))
        assert main(["key", "hash"]) == 2 and "ridgeline key new" in capsys.readouterr().err
