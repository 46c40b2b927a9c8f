"""Protects what a caller is told of its own request, and that nobody else is: ids, parts that sum to TTFT, a
store that stays small, and a clear 404."""

import json
from typing import Any

import pytest
from starlette.types import ASGIApp

from ridgeline.account.caller import Caller
from ridgeline.account.clocks import RequestClock
from ridgeline.account.kept import Accounts
from ridgeline.account.metrics import Metrics
from ridgeline.base.clock import VirtualClock
from ridgeline.base.errors import RequestError
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from tests.server.asgi import call
from tests.server.fake import ACCOUNT, FakeEngine, fake_api, keyring

pytestmark = pytest.mark.anyio
PATH = "/v1/ridgeline/requests/"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def _app(*keys: str) -> tuple[ASGIApp, FakeEngine]:
    api, engine = fake_api()
    return build_app(api, Health(engine, VirtualClock(), 30.0), keys=keyring(*keys)), engine


async def _ask(app: ASGIApp, request_id: str, key: str = "", **fields: Any) -> Any:
    headers = {"x-request-id": request_id, "authorization": f"Bearer {key}"}
    return await call(app, "POST", "/v1/chat/completions", json.dumps(CHAT | fields).encode(), headers)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_account_of_a_request(stream: bool) -> None:
    """By the id in the answer's header: each choice, the engine's account as it came, TTFT by its parts."""
    app, _ = _app()
    got = await _ask(app, "", n=2, stream=stream)
    found = (await call(app, "GET", PATH + got.headers["x-request-id"])).json
    assert found["id"] == got.headers["x-request-id"] and found["status"] == "ended"
    assert [choice["index"] for choice in found["choices"]] == [0, 1]
    for choice in found["choices"]:
        assert sum(choice["ttft_parts_s"].values()) == pytest.approx(choice["ttft_s"])
        assert choice["ttft_s"] + (choice["num_output_tokens"] - 1) * choice["tpot_s"] == pytest.approx(
            choice["e2e_s"])  # fmt: skip
        assert (choice["finish_reason"], choice["num_output_tokens"]) == ("stop", 6)
        assert choice["waited_s"] == {"rows": 0.25} and choice["num_cached_tokens"] == 3
        assert (choice["floor_s"], choice["measured_s"]) == (0.5, 3.0 - 1.625)
        assert choice["num_chunks"] == ACCOUNT["num_chunks"]


async def test_only_the_key_that_made_it_may_read_it() -> None:
    """The same id under two keys is two requests; who made none is told no more than that."""
    app, _ = _app("one", "two", "three")
    for key, tokens in (("one", 2), ("two", 4)):
        assert (await _ask(app, "same", key, max_tokens=tokens)).headers["x-request-id"] == "same"
    for key, tokens in (("one", 2), ("two", 4)):
        got = await call(app, "GET", PATH + "same", headers={"authorization": f"Bearer {key}"})
        assert got.json["choices"][0]["num_output_tokens"] == tokens
    got = await call(app, "GET", PATH + "same", headers={"authorization": "Bearer three"})
    assert got.status == 404 and got.json["error"]["code"] == "request_not_found"
    assert (await call(app, "GET", PATH + "same")).status == 401


@pytest.mark.parametrize("junk", ["nobody", "", "a/b", "%00", "%F0%9F", "x" * 4000, "..%2f..%2fmetrics"])
async def test_an_unknown_id_is_a_clear_404(junk: str) -> None:
    app, _ = _app()
    got = await call(app, "GET", PATH + junk)
    assert got.status == 404 and "x-request-id" in got.json["error"]["message"] and len(got.body) < 600


async def test_one_that_runs_one_that_was_refused_and_one_that_broke() -> None:
    app, engine = _app()
    engine.refuse = RequestError("no", status=503)
    assert (await _ask(app, "refused")).status == 503
    engine.refuse, engine.fail_after = None, 2
    assert (await _ask(app, "broke")).status == 500
    for name in ("refused", "broke"):
        found = (await call(app, "GET", PATH + name)).json
        assert found["status"] == "ended" and found["choices"][0]["finish_reason"] in ("refused", "error")
    assert (await _ask(app, "bad", temperature=-1)).status == 400
    assert (await call(app, "GET", PATH + "bad")).status == 404, "what never was a request has no account"


def test_the_store_stays_small() -> None:
    """In requests and in choices; the newest is kept, however large."""
    store = Accounts(most_requests=3, most_choices=10)

    def add(name: str, num_choices: int = 1) -> None:
        store.add(RequestClock(Metrics("m"), 0.0, Caller(request_id=name)), num_choices)

    def has(name: str) -> bool:
        try:
            return store.account(Caller(), name)["status"] == "running"
        except RequestError:
            return False

    for name in "abacd":
        add(name)
    assert [has(name) for name in "abcd"] == [True, False, True, True]
    add("e", 8)
    assert [has(name) for name in "acde"] == [False, True, True, True]
    add("f", 99)
    assert [has(name) for name in "cdef"] == [False, False, False, True]
