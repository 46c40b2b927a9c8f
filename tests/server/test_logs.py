"""Protects the log: an object a line that says what became of each request, and never what a client wrote,
also when something fails; unless the operator asked for it."""

import asyncio
import gc
import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.types import ASGIApp

from ridgeline.api.openai import OpenAI
from ridgeline.base.clock import VirtualClock
from ridgeline.base.errors import RequestError
from ridgeline.base.logs import LogStyle, configure, said
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from ridgeline.server.keys import Key, Keys, digest_of
from ridgeline.server.serve import log_unhandled
from tests.server.asgi import call
from tests.server.fake import FakeEngine, fake_api

pytestmark = pytest.mark.anyio
SECRET = "xyzzy-prompt"
KEY = {"authorization": "Bearer key"}


@contextmanager
def _log(style: LogStyle) -> Iterator[io.StringIO]:
    """What a process logs that is configured like this."""
    root, stream = logging.getLogger(), io.StringIO()
    before, level, hooks = root.handlers[:], root.level, (sys.excepthook, threading.excepthook)
    root.handlers.clear()
    try:
        configure(style)
        root.handlers[0].setStream(stream)  # type: ignore[attr-defined]
        yield stream
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        sys.excepthook, threading.excepthook = hooks
        logging.captureWarnings(False)


def _app(prompts: bool = False) -> tuple[ASGIApp, OpenAI, FakeEngine]:
    api, engine = fake_api()
    keys = Keys([Key(digest=digest_of(b"key"), name="anna")])
    health = Health(engine, VirtualClock(), 30.0)
    return build_app(api, health, keys=keys, origins=("http://here",), log_prompts=prompts), api, engine


def _objects(stream: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_an_object(stream: bool) -> None:
    app, _, _ = _app()
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "n": 2, "stream": stream}).encode()
    with _log(LogStyle(format="json")) as log:
        got = await call(app, "POST", "/v1/chat/completions", body, KEY | {"x-request-id": "my-id"})
    (record,) = _objects(log)
    num_prompt = len((await call(app, "POST", "/tokenize", body.replace(b', "n": 2, "stream": false', b"")
                                 .replace(b', "n": 2, "stream": true', b""), KEY)).json["tokens"])
    assert got.status == 200 and record.pop("time").endswith("+00:00") and 0 <= record.pop("seconds") < 5
    assert record == {
        "level": "info", "logger": "ridgeline.request", "message": "request", "request_id": "my-id",
        "method": "POST", "route": "/v1/chat/completions", "status": 200, "tokens_in": num_prompt,
        "tokens_out": 12, "tenant": "anna", "finish": "stop",
    }  # fmt: skip


async def test_refusals_probes_and_clients_that_left() -> None:
    """What was refused has its code; a probe that went well is no news; unknown paths are not shown."""
    app, _, engine = _app()
    with _log(LogStyle(format="json")) as log:
        for path in ("/health", "/ready", "/ping"):
            await call(app, "GET", path)
        await call(app, "GET", "/metrics", headers=KEY)
        await call(app, "GET", "/metrics")
        await call(app, "POST", "/v1/completions", b'{"prompt": 5}', KEY)
        await call(app, "POST", f"/{SECRET}", b"", KEY)
        await call(app, "GET", "/v1/models/m?x=" + SECRET, headers=KEY)
        engine.gate, gone = asyncio.Event(), asyncio.Event()
        gone.set()
        await call(app, "POST", "/v1/completions", b'{"prompt": "a"}', KEY, gone=gone)
    found = [(one.get("route"), one["status"], one.get("error"), one.get("tenant")) for one in _objects(log)]
    assert found == [
        ("/metrics", 401, "invalid_api_key", None), ("/v1/completions", 400, "invalid_type", "anna"),
        (None, 404, "not_found", "anna"), ("/v1/models/{name:path}", 200, None, "anna"),
        ("/v1/completions", 499, None, "anna"),
    ]  # fmt: skip
    assert _objects(log)[-1]["finish"] == "abort" and SECRET not in log.getvalue()


BODIES = [  # the secret where a client can write one
    {"prompt": SECRET}, {"prompt": [SECRET]}, {"prompt": SECRET, SECRET: 1}, {"model": SECRET, "prompt": "a"},
    {"messages": [{"role": "user", "content": SECRET}]}, {"messages": [{"role": SECRET, "content": "a"}]},
    {"messages": [{"role": "user", "content": SECRET}], "stream": True}, {"prompt": "a", "stop": SECRET},
    {"prompt": "a", "structured_outputs": {"grammar": SECRET}}, {"prompt": "a", "guided_regex": f"({SECRET}"},
    {"prompt": "a", "logit_bias": {SECRET: 1}}, {"input": SECRET}, {"prompt": "a", "suffix": SECRET},
    {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": SECRET}]}, {"tokens": [SECRET]},
    {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "system": SECRET},
]  # fmt: skip
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings",
         "/tokenize", "/detokenize", "/v1/messages/count_tokens", f"/v1/responses/{SECRET}/cancel"]


@pytest.mark.parametrize(("style", "trouble"), [
    ("json", None), ("json", "refused"), ("json", "bug"), ("json", "middle"), ("text", "engine"),
    ("text", "bug"),
])  # fmt: skip
async def test_no_prompt_is_written_whatever_goes_wrong(style: str, trouble: str | None) -> None:
    """Every endpoint, every body, broken ones too, and an engine that fails with the prompt in its words."""
    app, _, engine = _app()
    bug = ValueError(f"cannot do {SECRET}")
    bug.__cause__ = KeyError(SECRET)
    if trouble in ("refused", "bug"):
        engine.refuse = RequestError(f"no {SECRET}") if trouble == "refused" else bug  # type: ignore[assignment]
    elif trouble is not None:
        engine.fail_after = 1 if trouble == "middle" else 0
    with _log(LogStyle(format=style)) as log:
        for path in PATHS:
            for body in (*map(json.dumps, BODIES), f'{{"prompt": "{SECRET}', SECRET, f'{{"{SECRET}": nan}}'):
                try:
                    await call(app, "POST", path, body.encode(), KEY)
                except ValueError as error:
                    assert error is bug
                    logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=error)
        await call(app, "POST", "/v1/completions", b'{"prompt": "a"}', {"authorization": f"Bearer {SECRET}"})
    text = log.getvalue()
    assert SECRET not in text and text.count("request") > len(PATHS) * len(BODIES)
    if trouble == "bug":
        assert "ValueError" in text and "KeyError" in text and "fake.py" in text, "kind and place are there"


async def test_prompts_are_written_when_asked_for() -> None:
    app, _, engine = _app(prompts=True)
    with _log(LogStyle(format="json", prompts=True)) as log:
        await call(app, "POST", "/v1/completions", [b'{"prompt": "', SECRET.encode(), b'"}'], KEY)
        engine.refuse = ZeroDivisionError("secret detail")  # type: ignore[assignment]
        with pytest.raises(ZeroDivisionError):
            await call(app, "POST", "/v1/completions", b'{"prompt": "a"}', KEY)
    done, failure, failed = _objects(log)
    assert done["body"] == f'{{"prompt": "{SECRET}"}}'
    assert failed["status"] == 500 and failed["level"] == "error"
    assert failure["exception"] == "ZeroDivisionError" and "secret detail" in failure["trace"][-1]


def test_what_nobody_catches_is_an_object_too() -> None:
    """Of the main thread and of others; a library's warnings as well."""
    def fail() -> None:
        raise ValueError(SECRET)

    with _log(LogStyle(format="json")) as log:
        try:
            fail()
        except ValueError as error:
            sys.excepthook(ValueError, error, error.__traceback__)
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        warnings.warn("a library says", stacklevel=1)
    main, other, warning = _objects(log)
    for one in (main, other):
        assert (one["level"], one["exception"], one["logger"]) == ("critical", "ValueError", "ridgeline")
    assert "a library says" in warning["message"] and SECRET not in log.getvalue()


async def test_what_asyncio_catches_for_nobody_is_told_without_its_words() -> None:
    """asyncio's own record shows the task with its exception, words and all."""
    async def fail() -> None:
        raise ValueError(SECRET)

    loop, done = asyncio.get_running_loop(), asyncio.Event()
    with _log(LogStyle(format="json")) as log:
        loop.set_exception_handler(lambda *told: (log_unhandled(*told), done.set()))
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        del task
        gc.collect()
        await done.wait()
        loop.set_exception_handler(None)
    (record,) = _objects(log)
    assert record["exception"] == "ValueError" and "never retrieved" in record["message"]
    assert SECRET not in log.getvalue()


def test_lines_for_people() -> None:
    with _log(LogStyle()) as log:
        fields = said({"route": "/a b", "x": None, "n": 1})
        logging.getLogger("ridgeline.request").info("request", extra=fields)
    assert log.getvalue() == 'INFO ridgeline.request: request route="/a b" n=1\n'
