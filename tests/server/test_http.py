"""Protects the edge: keys, CORS, body limits, error bodies, and that a client who leaves takes its work
along.
"""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import ASGIApp

from ridgeline.api.limits import LIMITS, limits_of
from ridgeline.api.openai import OpenAI
from ridgeline.base.clock import VirtualClock
from ridgeline.server.access import OPEN
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from tests.server.asgi import call
from tests.server.fake import FakeEngine, fake_api, keyring

pytestmark = pytest.mark.anyio
CHAT = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
STREAM = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
ROUTES = [
    ("GET", "/v1/models"), ("GET", "/v1/models/m"), ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/metrics"),
    ("GET", "/version"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/nowhere"),
    ("POST", "//v1/chat/completions"), ("POST", "/v1//completions"), ("POST", "/v1/completions/"),
    ("POST", "/chat/completions"), ("GET", "/V1/models"), ("GET", "//health"), ("GET", "/health/"),
    ("GET", "/health/../v1/models"), ("OPTIONS", "/v1/models"), ("HEAD", "/v1/models"),
]  # fmt: skip
NO_KEY: list[dict[str, str]] = [
    {}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer"}, {"authorization": "Bearer "},
    {"authorization": "secret"}, {"authorization": "Basic secret"}, {"authorization": "Bearer secret2"},
]  # fmt: skip


def _app(**options: Any) -> tuple[ASGIApp, OpenAI, FakeEngine]:
    api, engine = fake_api()
    keys = keyring(*options.pop("keys", ()))
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=keys, **options)
    return app, api, engine


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_no_route_answers_without_the_key(method: str, path: str) -> None:
    """Odd spellings, unknown paths and a key in the URL included."""
    app, _, engine = _app(keys=("secret", "other"))
    for headers in NO_KEY:
        got = await call(app, method, path + "?api_key=secret&key=secret", CHAT, headers)
        assert got.status == 401 and got.json["error"]["code"] == "invalid_api_key", (headers, got)
        assert "www-authenticate" in got.headers
    assert not engine.submitted


async def test_each_key_opens_every_route_and_probes_need_none() -> None:
    app, _, _ = _app(keys=("secret", "other"))
    for key in ("secret", "other"):
        got = await call(app, "GET", "/v1/models", headers={"authorization": f"bearer {key}"})
        assert got.status == 200 and got.json["data"][0]["max_model_len"] == 256
    for path in OPEN:
        got = await call(app, "GET", path)
        assert got.status == 200 and set(got.json) == {"status"}


async def test_cors_is_off_by_default() -> None:
    app, _, _ = _app()
    got = await call(app, "GET", "/v1/models", headers={"origin": "http://here"})
    assert not any(name.startswith("access-control") for name in got.headers)
    got = await call(
        app,
        "OPTIONS",
        "/v1/models",
        headers={"origin": "http://here", "access-control-request-method": "GET"},
    )
    assert got.status == 405 and not any(name.startswith("access-control") for name in got.headers)


async def test_a_preflight_needs_no_key_and_only_a_known_origin_is_allowed() -> None:
    app, _, _ = _app(keys=("secret",), origins=("http://here",))
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    path = "/v1/chat/completions"
    got = await call(app, "OPTIONS", path, headers={"origin": "http://here", **asks})
    assert got.status == 204 and got.headers["access-control-allow-origin"] == "http://here"
    assert "POST" in got.headers["access-control-allow-methods"]
    assert got.headers["access-control-allow-headers"] == "authorization"
    got = await call(app, "OPTIONS", path, headers={"origin": "http://there", **asks})
    assert got.status == 401 and not any(name.startswith("access-control-allow") for name in got.headers)
    got = await call(
        app, "GET", "/v1/models", headers={"origin": "http://here", "authorization": "Bearer secret"}
    )
    assert got.status == 200 and got.headers["access-control-allow-origin"] == "http://here"
    got = await call(app, "GET", "/v1/models", headers={"origin": "http://here"})
    assert got.status == 401, "a browser's own request still needs the key"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/v1/completions/", 404, "not_found"),
        ("POST", "//v1/completions", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/nope", 404, "model_not_found"),
    ],
)
async def test_unknown_routes_and_methods_are_json(method: str, path: str, status: int, code: str) -> None:
    app, _, _ = _app()
    got = await call(app, method, path, CHAT)
    assert got.status == status and got.json["error"]["code"] == code
    assert set(got.json["error"]) == {"message", "type", "param", "code"}


async def test_request_ids_are_echoed_or_made() -> None:
    app, _, _ = _app(keys=("secret",))
    assert (await call(app, "GET", "/health", headers={"x-request-id": "abc-1"})).headers[
        "x-request-id"
    ] == "abc-1"
    for bad in ("", "a\tb", "x" * 200, "a b"):
        made = (await call(app, "GET", "/v1/models", headers={"x-request-id": bad})).headers["x-request-id"]
        assert made and made != bad


async def test_a_body_beyond_the_limit_is_413_announced_or_not() -> None:
    app, _, _ = _app()
    got = await call(app, "POST", "/v1/completions", b"{}", {"content-length": str(LIMITS.body_bytes + 1)})
    assert got.status == 413
    part = b" " * (LIMITS.body_bytes // 2)
    got = await call(app, "POST", "/v1/completions", [part, part, part])
    assert got.status == 413 and got.json["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(("path", "body", "status", "code"), [
    ("/v1/completions", b'{"prompt": "' + b"a" * 90 + b'"}', 413, "request_too_large"),
    ("/v1/chat/completions", b'{"messages": [{"content": [[1]]}]}', 400, "nesting_too_deep"),
    ("/tokenize", b'{"prompt": [[[[]]]]}', 400, "nesting_too_deep"),
    ("/v1/completions", b'{"prompt": ["a", "b"], "n": 2}', 400, "invalid_value"),
    ("/v1/chat/completions", CHAT[:-1] + b', "n": 4}', 400, "invalid_value"),
    ("/v1/chat/completions", CHAT[:-1] + b', "n": 3}', 200, None),
])  # fmt: skip
async def test_an_operator_sets_the_limits(path: str, body: bytes, status: int, code: str | None) -> None:
    api, engine = fake_api()
    api.served = replace(api.served, limits=limits_of(body_bytes=100, depth=3, choices=3))
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=keyring())
    got = await call(app, "POST", path, body)
    assert got.status == status and got.json.get("error", {}).get("code") == code, got.body


async def test_a_form_is_refused_and_a_missing_type_is_not() -> None:
    """Another site's page can post a form to a local server without asking; JSON it cannot."""
    app, _, _ = _app()
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert (await call(app, "POST", "/v1/chat/completions", CHAT, {"content-type": kind})).status == 415
    got = await call(
        app, "POST", "/v1/chat/completions", CHAT, {"content-type": "Application/JSON; charset=utf-8"}
    )
    assert got.status == 200


@pytest.mark.parametrize(("packing", "status"), [("gzip", 415), ("br, gzip", 415), (" Identity", 200)])
async def test_a_packed_body_is_refused_by_its_name(packing: str, status: int) -> None:
    app, _, _ = _app()
    got = await call(app, "POST", "/v1/chat/completions", CHAT, {"content-encoding": packing})
    assert got.status == status and (status == 200 or packing in got.json["error"]["message"])


async def test_a_streamed_answer_over_http() -> None:
    app, api, _ = _app()
    got = await call(app, "POST", "/v1/chat/completions", STREAM)
    assert got.status == 200 and got.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in got.headers and got.body.endswith(b"data: [DONE]\n\n")
    assert not api.admission.num_active


@pytest.mark.parametrize("field", [{"temperature": -1}, {"model": "nope"}, {"n": 0}])
async def test_a_refusal_of_a_streamed_request_is_plain_json(field: dict[str, Any]) -> None:
    app, _, _ = _app()
    got = await call(app, "POST", "/v1/chat/completions", json.dumps(json.loads(STREAM) | field).encode())
    assert 400 <= got.status < 500 and got.headers["content-type"] == "application/json"
    assert got.json["error"]["param"] in field


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "streamed"])
async def test_leaving_before_the_first_token_cancels(body: bytes) -> None:
    app, api, engine = _app()
    engine.gate, gone = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(call(app, "POST", "/v1/chat/completions", body, gone=gone))
    while not engine.open:
        await asyncio.sleep(0)
    gone.set()
    await asyncio.wait_for(task, 5)
    assert not engine.open and not api.admission.num_active and api.metrics.finished["abort"] == 1


async def test_leaving_in_the_middle_of_a_stream_cancels() -> None:
    app, api, engine = _app()
    engine.answer = "x" * 100
    got = await call(app, "POST", "/v1/chat/completions", STREAM, leave_after_first_event=True)
    assert got.status == 200 and b"[DONE]" not in got.body
    assert not engine.open and not api.admission.num_active


async def test_a_failure_of_ours_is_a_500_that_shows_nothing_of_the_inside() -> None:
    app, _, engine = _app()
    engine.refuse = ZeroDivisionError("secret detail")  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):  # the server's log gets it
        await call(app, "POST", "/v1/chat/completions", CHAT)


async def test_tokenize_and_detokenize() -> None:
    app, _, engine = _app()
    got = await call(app, "POST", "/tokenize", b'{"prompt": "ab c", "return_token_strs": true}')
    assert (
        got.json["token_strs"] == ["ab", " ", "c"]
        and got.json["count"] == 3
        and got.json["max_model_len"] == 256
    )
    back = await call(app, "POST", "/detokenize", json.dumps({"tokens": got.json["tokens"]}).encode())
    assert back.json == {"prompt": "ab c"}
    for idle in ({"prompt": "a", "add_generation_prompt": True},
                 {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True}):
        refused = await call(app, "POST", "/tokenize", json.dumps(idle).encode())
        assert refused.status == 400 and refused.json["error"]["param"] == list(idle)[-1]
    chat = await call(app, "POST", "/tokenize", CHAT)
    await call(app, "POST", "/v1/chat/completions", CHAT)
    assert chat.json["tokens"] == engine.submitted[0][0]
    for body in (
        b"{}",
        b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}',
        b'{"prompt": "a", "x": 1}',
    ):
        assert (await call(app, "POST", "/tokenize", body)).status == 400
    for tokens in (b"[-1]", b"[259]", b'["a"]', b"[1.5]"):
        assert (await call(app, "POST", "/detokenize", b'{"tokens": ' + tokens + b"}")).status == 400


async def test_the_openapi_document_describes_the_bodies() -> None:
    app, _, _ = _app()
    document = (await call(app, "GET", "/openapi.json")).json
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatRequest")
    fields = document["components"]["schemas"]["ChatRequest"]
    assert "logit_bias" in fields["properties"] and fields["additionalProperties"] is False
    assert "422" not in chat["responses"]
    assert (await call(app, "GET", "/docs")).status == 200


async def test_health_tells_progress_and_death_apart() -> None:
    """Work that waits without a step is trouble; an idle engine is not; a dead one is for good."""
    api, engine = fake_api()
    clock = VirtualClock()
    health = Health(engine, clock, 30.0)
    app = build_app(api, health, keys=keyring())
    engine.stats["num_waiting"] = 1
    await health.gauges()
    clock.advance_to(29.0)
    await health.gauges()
    assert (await call(app, "GET", "/health")).status == 200
    clock.advance_to(31.0)
    await health.gauges()
    got = await call(app, "GET", "/health")
    assert got.status == 503 and "no step" in got.json["status"]
    assert (await call(app, "GET", "/ready")).status == 503 and (
        await call(app, "GET", "/ping")
    ).status == 200
    engine.stats["num_steps"] = 1
    await health.gauges()
    assert (await call(app, "GET", "/health")).status == 200
    engine.stats["num_waiting"] = 0
    clock.advance_to(100.0)
    await health.gauges()
    assert (await call(app, "GET", "/health")).status == 200

    engine.dead = "killed by signal 9"
    assert "signal 9" in (await call(app, "GET", "/health")).json["status"]


async def test_ready_says_no_while_shutting_down_and_health_does_not() -> None:
    app, api, _ = _app()
    api.admission.close()
    for method in ("GET", "HEAD"):
        assert (await call(app, method, "/ready")).status == 503
        assert (await call(app, method, "/health")).status == (await call(app, method, "/ping")).status == 200
    got = await call(app, "POST", "/v1/chat/completions", STREAM)
    assert got.status == 503 and got.headers["retry-after"]
