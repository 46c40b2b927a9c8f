"""Protects the labs beside the API: the same keys guard them, and they need no engine."""

import pytest
from starlette.types import ASGIApp

from ridgeline.base.clock import VirtualClock
from ridgeline.server.access import Keys
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from ridgeline.web.app import labs_routes
from tests.server.asgi import call
from tests.server.fake import FakeEngine, fake_api
from tests.web.sample import CACHE, LABS

pytestmark = pytest.mark.anyio
PATHS = ("/labs", f"/labs/{CACHE.key}", f"/labs/api/{CACHE.key}?users=9", "/labs/static/labs.js")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _app(*keys: str) -> tuple[ASGIApp, FakeEngine]:
    api, engine = fake_api()
    health = Health(engine, VirtualClock(), 30.0)
    return build_app(api, health, keys=Keys(keys), pages=labs_routes(LABS)), engine


@pytest.mark.parametrize("path", PATHS)
async def test_the_labs_answer_beside_the_api_also_when_the_engine_is_gone(path: str) -> None:
    app, engine = _app()
    assert (await call(app, "GET", path)).status == 200
    engine.dead = "killed"
    assert (await call(app, "GET", "/health")).status == 503
    assert (await call(app, "GET", path)).status == 200


@pytest.mark.parametrize("path", PATHS)
async def test_a_key_of_the_server_guards_the_labs_too(path: str) -> None:
    app, _ = _app("secret")
    assert (await call(app, "GET", path)).status == 401
    assert (await call(app, "GET", path, headers={"authorization": "Bearer secret"})).status == 200


async def test_a_mistake_reads_as_the_servers_own_do() -> None:
    app, _ = _app()
    got = await call(app, "GET", f"/labs/api/{CACHE.key}?gpu=none")
    assert got.status == 400 and set(got.json["error"]) == {"message", "type", "param", "code"}
    assert (await call(app, "GET", "/labs/none/none")).json["error"]["code"] == "not_found"
