"""C-14 and C-15: hostile bodies and callers without a key."""

import json
import re
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.process import Server, serving, strict_json
from tests.server.tiny import tiny_folder

USER = [{"role": "user", "content": "a"}]


def _nested(depth: int) -> dict[str, Any]:
    """An object schema `depth` objects deep."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _deep(field: bytes, opening: bytes, closing: bytes, depth: int) -> bytes:
    value = opening * depth + b"1" + closing * depth
    return b'{"messages": [{"role": "user", "content": "a"}], "' + field + b'": ' + value + b"}"


def _chat(**fields: Any) -> bytes:
    return json.dumps({"messages": USER, **fields}).encode()


HOSTILE = {
    "arrays": _deep(b"x", b"[", b"]", 20_000),
    "objects": _deep(b"x", b'{"a":', b"}", 20_000),
    "in-messages": b'{"messages": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "unclosed": b"[" * 100_000,
    "tools": _chat(tools=[{"type": "function", "function": {"name": "f", "parameters": _nested(300)}}]),
    "schema": _chat(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": _nested(300)}}
    ),
    "huge-number": b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": ' + b"9" * 100_000 + b"}",
    "bad-utf8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "surrogate": b'{"messages": [{"role": "user", "content": "\\ud83d alone"}]}',
    "array": b"[]",
    "nothing": b"",
    "null": b"null",
    "cut": b'{"messages": [{"role": "us',
    "trailing": _chat() + b"x",
}


# ---- C-14


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("stream", [False, True])
def test_c14_hostile_bodies(server: Server, name: str, stream: bool) -> None:
    body = HOSTILE[name]
    if stream:
        body = body.replace(b'{"messages"', b'{"stream": true, "messages"', 1)
    began = time.monotonic()
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code in (400, 413) and time.monotonic() - began < 2
    assert answer.json()["error"]["param"]


def test_c14_a_flat_large_body_is_served(server: Server) -> None:
    """The control: size alone is no fault."""
    answer = server.post("/v1/chat/completions", _chat(max_tokens=1, metadata={"k" * 60: "v" * 40_000}))
    assert answer.status_code == 200, answer.text
    text = "lamp " * 600
    assert server.chat(text, max_tokens=1)["usage"]["prompt_tokens"] > 600


@pytest.mark.parametrize(
    ("change", "param", "status"),
    [
        ({"model": "nope"}, "model", 404),
        ({"messages": "hello"}, "messages", 400),
        ({"max_tokens": "ten"}, "max_tokens", 400),
        ({"max_token": 5}, "max_token", 400),
        ({"Temperature": 5}, "Temperature", 400),
        ({"messages": [{"role": "user", "content": "a", "text": "b"}]}, "messages[0].text", 400),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", 400),
        ({"response_format": {"type": "xml"}}, "response_format", 400),
    ],
)
def test_c14_wrong_names_and_types(server: Server, change: dict[str, Any], param: str, status: int) -> None:
    for stream in (False, True):
        error = server.refused("/v1/chat/completions", _chat(**change | {"stream": stream}), status)
        assert error["param"] == param


def test_c14_memory_stays_flat(server: Server) -> None:
    def resident() -> int:
        pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    def volley() -> None:
        for body in HOSTILE.values():
            server.post("/v1/chat/completions", body)

    for _ in range(10):
        volley()
    before = resident()
    for _ in range(50):
        volley()
    assert resident() - before < max(0.02 * before, 4 * 2**20)


# ---- C-15

KEY = "sk-ridgeline-test"
ORIGIN = "http://chat.example"
OPEN = {"/health", "/ready", "/ping"}
SPELLINGS = [
    "//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/", "/chat/completions",
    "//v1/models", "/v1/models/", "/models", "/V1/MODELS", "/%2fv1/models", "/v1/%6dodels", "//health",
    "/health/", "/metrics/", "/./v1/models", "/health/../v1/models", "//docs", "/docs/", "/redoc",
]  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tiny_folder(tmp_path_factory.mktemp("guarded"))
    words = (str(folder), "--load-format", "dummy", "--kv-cache-bytes", "4MB", "--allowed-origin", ORIGIN,
             "--log-format", "json")
    with serving(*words, key=KEY) as server:
        yield server


def test_c15_no_route_without_the_key(guarded: Server) -> None:
    paths = guarded.http.get("/openapi.json").json()["paths"]
    listed = [(method.upper(), re.sub(r"{[^}]*}", "x", path)) for path in paths for method in paths[path]]
    listed += [("GET", "/openapi.json"), ("GET", "/docs")]
    assert len(listed) > 20
    odd = {(method, spelt) for method, path in listed for spelt in (
        f"/{path}", f"{path}/", path.removeprefix("/v1"), path.replace("/", "//"), path.upper())}
    odd |= {(method, path) for path in SPELLINGS for method in ("GET", "POST", "HEAD", "OPTIONS")}
    routes = [*listed, *sorted(odd)]
    wrong = [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"}, {"Authorization": KEY}]
    body = json.dumps({"messages": USER, "prompt": "a", "max_tokens": 1})
    stranger = HTTPConnection(guarded.url.removeprefix("http://"))  # it sends a path as it is spelt
    for method, path in routes:
        for headers in wrong:
            stranger.request(method, f"{path}?api_key={KEY}", body, headers)
            answer = stranger.getresponse()
            content = answer.read()
            if path in OPEN:
                assert method != "GET" or set(strict_json(content)) == {"status"}
                continue
            assert answer.status == 401, (method, path, headers)
            assert method == "HEAD" or strict_json(content)["error"]["code"] == "invalid_api_key"
    stranger.close()


def test_c15_with_the_key_all_is_well(guarded: Server) -> None:
    assert guarded.chat("a", max_tokens=1)["usage"]["completion_tokens"] == 1
    assert guarded.openai().models.list().data
    assert any("Bearer $RIDGELINE_API_KEY" in line for line in guarded.output)
    assert not any(KEY in line for line in guarded.output)


def test_c15_what_it_logs_shows_no_key_and_no_text(guarded: Server) -> None:
    """Each line of both processes is an object, from the first on."""
    guarded.chat("a secret of mine", max_tokens=1)
    guarded.idle()
    records = [json.loads(line) for line in guarded.output]
    assert all(record["time"] and record["level"] and record["message"] for record in records)
    assert {"ridgeline.engine", "ridgeline.request"} <= {record["logger"] for record in records}
    assert not any(KEY in line or "a secret of mine" in line for line in guarded.output)


def test_c15_a_preflight_needs_no_key(guarded: Server) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with httpx.Client(base_url=guarded.url) as browser:
        answer = browser.options("/v1/chat/completions", headers={"Origin": ORIGIN, **asks})
        assert answer.is_success and answer.headers["access-control-allow-origin"] == ORIGIN
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()
        answer = browser.options("/v1/chat/completions", headers={"Origin": "http://evil.example", **asks})
        assert not any(name.startswith("access-control-allow") for name in answer.headers)
        answer = browser.post("/v1/chat/completions", json={"messages": USER}, headers={"Origin": ORIGIN})
        assert answer.status_code == 401
    answer = guarded.http.get("/v1/models", headers={"Origin": ORIGIN})
    assert answer.headers["access-control-allow-origin"] == ORIGIN
