"""Protects the labs beside the API: a browser, which sends no key, may read them; they need no engine, and
what is not theirs stays behind the keys."""

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from ridgeline.base.clock import VirtualClock
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from ridgeline.web.app import Groups, labs_app, labs_routes, live_routes
from tests.server.asgi import call
from tests.server.fake import FakeEngine, fake_api, keyring
from tests.web.sample import CACHE, GROUPS

pytestmark = pytest.mark.anyio
PATHS = ("/labs", f"/labs/{CACHE.key}", f"/labs/api/{CACHE.key}?users=9", "/labs/static/labs.js",
         "/live", "/labs/static/live.js")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _app(*keys: str) -> tuple[ASGIApp, FakeEngine]:
    api, engine = fake_api()
    health = Health(engine, VirtualClock(), 30.0)
    pages = [*labs_routes(lambda: GROUPS), *live_routes()]
    return build_app(api, health, keys=keyring(*keys), pages=pages), engine


@pytest.mark.parametrize("path", PATHS)
async def test_the_labs_answer_beside_the_api_also_when_the_engine_is_gone(path: str) -> None:
    app, engine = _app()
    assert (await call(app, "GET", path)).status == 200
    engine.dead = "killed"
    assert (await call(app, "GET", "/health")).status == 503
    assert (await call(app, "GET", path)).status == 200


@pytest.mark.parametrize("path", PATHS)
async def test_a_browser_without_a_key_reads_the_labs(path: str) -> None:
    app, _ = _app("secret")
    assert (await call(app, "GET", path)).status == 200


@pytest.mark.parametrize("path", [
    "/v1/models", "/metrics", "/docs", "/openapi.json", "/labsx", "//labs", "/Labs", "/", "/x/labs",
    "/v1/ridgeline/live", "/v1/ridgeline/requests/x", "/livex",
])  # fmt: skip
async def test_no_other_path_is_opened_by_them(path: str) -> None:
    app, _ = _app("secret")
    assert (await call(app, "GET", path)).status == 401


@pytest.mark.parametrize("path", ["/labs/../v1/models", "/labs/../metrics", "/labs//v1/models", "/labs/x/y",
                                  "/live/data", "/live/../metrics"])
async def test_no_path_below_them_leads_out(path: str) -> None:
    app, _ = _app("secret")
    assert (await call(app, "GET", path)).status == 404


def test_nothing_is_loaded_before_somebody_looks() -> None:
    """A server starts without the labs, and a page that fails to load them fails alone."""
    loads = []

    def load() -> Groups:
        loads.append("once")
        return GROUPS

    client = TestClient(labs_app(load))
    assert not loads
    ours = [path for path in PATHS if path != "/live"]
    assert [client.get(path).status_code for path in ours] == [200] * len(ours) and loads == ["once"]


async def test_a_mistake_reads_as_the_servers_own_do() -> None:
    app, _ = _app()
    got = await call(app, "GET", f"/labs/api/{CACHE.key}?gpu=none")
    assert got.status == 400 and set(got.json["error"]) == {"message", "type", "param", "code"}
    assert (await call(app, "GET", "/labs/none/none")).json["error"]["code"] == "not_found"
