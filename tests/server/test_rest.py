"""Sleep, wake-up and reload over HTTP: what runs is waited for, who comes is told when to come again, /health
and /ready tell the truth, and weights that do not fit change nothing."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from ridgeline.api.openai import OpenAI
from ridgeline.base.clock import VirtualClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError, RequestError
from ridgeline.frontend.client import EngineClient
from ridgeline.models.resolve import open_model
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from ridgeline.server.keys import plain
from ridgeline.server.rest import Rest
from tests.engine.weights import saved_folder
from tests.server.asgi import call
from tests.server.fake import FakeEngine, fake_api, keyring
from tests.server.process import serving
from tests.server.tiny import tiny_folder

CHAT = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()


class Keeper:
    """As EngineKeeper's rest and resume over the fake engine."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    async def rest(self, why: str) -> None:
        assert not self._engine.open, "a request was cut"
        self._engine.dead = why

    async def resume(self, start: Callable[[], Awaitable[object]]) -> None:
        await start()
        self._engine.dead = None


class Setting:
    """An app whose engine may sleep. started: the models of all starts; broken: those that fail."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.started: list[str | None] = []
        self.broken: set[str] = set()
        self.api: OpenAI
        self.api, self.engine = fake_api()
        config = EngineConfig(model=str(folder), load_format="dummy")
        self.rest = Rest(Keeper(self.engine), self.api.admission, config,  # type: ignore[arg-type]
                         open_model(str(folder), load_format="dummy").spec, self.launch)
        health = Health(self.engine, VirtualClock(), 30.0)  # type: ignore[arg-type]
        self.keys = keyring(*options.pop("keys", ()))
        self.app: ASGIApp = build_app(self.api, health, rest=self.rest, keys=self.keys, **options)

    async def launch(self, config: EngineConfig) -> EngineClient:
        self.started.append(config.model)
        if config.model in self.broken:
            raise ConfigError("its weights are broken")
        return None  # type: ignore[return-value]

    async def status(self, method: str, path: str, body: bytes = b"") -> int:
        return (await call(self.app, method, path, body)).status


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tiny_folder(tmp_path / "model")


@pytest.mark.anyio
async def test_asleep_and_awake_again(folder: Path) -> None:
    setting = Setting(folder)
    assert await setting.status("POST", "/v1/chat/completions", CHAT) == 200
    for level in (1, 2):  # alike, and the second time it sleeps already
        got = await call(setting.app, "POST", f"/sleep?level={level}")
        assert got.json == {"is_sleeping": True, "given_back": ["cache", "weights"]}
    assert (await call(setting.app, "GET", "/is_sleeping")).json == {"is_sleeping": True}
    health, ready = [await call(setting.app, "GET", path) for path in ("/health", "/ready")]
    assert (health.status, health.json, ready.status) == (200, {"status": "asleep"}, 503)
    got = await call(setting.app, "POST", "/v1/chat/completions", CHAT)
    assert got.status == 503 and got.json["error"]["code"] == "sleeping" and int(got.headers["retry-after"])
    loading = b'{"lora_name": "a", "lora_path": "/a"}'
    got = await call(setting.app, "POST", "/v1/load_lora_adapter", loading)
    assert got.json["error"]["code"] == "sleeping"
    assert await setting.status("POST", "/sleep") == 200  # again
    assert [await setting.status("POST", "/wake_up") for _ in range(2)] == [200, 200]
    assert setting.started == [str(folder)]
    assert await setting.status("GET", "/health") == await setting.status("GET", "/ready") == 200
    assert await setting.status("POST", "/v1/chat/completions", CHAT) == 200


@pytest.mark.anyio
async def test_what_runs_is_waited_for(folder: Path) -> None:
    setting = Setting(folder)
    setting.engine.gate = asyncio.Event()
    running = asyncio.create_task(setting.status("POST", "/v1/chat/completions", CHAT))
    while not setting.engine.open:
        await asyncio.sleep(0)
    with pytest.raises(RequestError, match="1 requests did not end"):
        await setting.rest.sleep(drain_s=0.01)
    sleeping = asyncio.create_task(setting.rest.sleep())
    await asyncio.sleep(0.01)
    assert not sleeping.done() and await setting.status("POST", "/v1/chat/completions", CHAT) == 503
    assert [await setting.status("GET", path) for path in ("/ready", "/health")] == [503, 200]
    setting.engine.gate.set()
    await sleeping
    assert await running == 200 and setting.rest.state == "asleep"


@pytest.mark.anyio
async def test_other_weights(folder: Path, tmp_path: Path) -> None:
    """Of the same shape they serve; of another they are refused, and broken ones leave those before."""
    setting = Setting(folder)
    paths = {name: tmp_path / name for name in ("next", "broken", "wide")}
    for name, path in paths.items():
        path.mkdir()
        tiny_folder(path, **({"intermediate_size": 64} if name == "wide" else {}))

    async def reload(name: str) -> Any:
        body = json.dumps({"path": str(paths.get(name, name))}).encode()
        return await call(setting.app, "POST", "/v1/ridgeline/reload", body)

    async def root() -> str:
        got = await call(setting.app, "GET", "/v1/models")
        return got.json["data"][0]["root"]

    assert (await reload("next")).status == 200 and await root() == str(paths["next"])
    wide = await reload("wide")
    assert wide.status == 409 and wide.json["error"]["code"] == "another_shape"
    assert (await reload("nowhere")).status == 400 and setting.started == [str(paths["next"])]
    setting.broken.add(str(paths["broken"]))
    broken = await reload("broken")
    assert broken.status == 500 and "the weights before serve on" in broken.json["error"]["message"]
    assert setting.started[1:] == [str(paths["broken"]), str(paths["next"])]
    assert await root() == str(paths["next"])
    assert await setting.status("POST", "/v1/chat/completions", CHAT) == 200
    await setting.rest.sleep()
    assert (await reload("next")).status == 200  # from sleep too
    assert await setting.status("POST", "/v1/chat/completions", CHAT) == 200


@pytest.mark.anyio
async def test_only_where_it_is_enabled_and_with_a_key(folder: Path) -> None:
    api, engine = fake_api()
    bare = build_app(api, Health(engine, VirtualClock(), 30.0), keys=keyring())  # type: ignore[arg-type]
    setting = Setting(folder, keys=("secret",))
    for method, path in (("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping"),
                         ("POST", "/v1/ridgeline/reload")):
        assert (await call(bare, method, path, b"{}")).status == 404
        assert (await call(setting.app, method, path, b"{}")).status == 401
        got = await call(setting.app, method, path, b"{}", {"authorization": "Bearer secret"})
        assert got.status == (200 if method == "GET" else 403), "a key alone may only look"
    assert got.json["error"]["code"] == "admin_needed"
    assert setting.rest.state == "awake"
    setting.keys.replace([replace(plain("secret"), admin=True)])
    key = {"authorization": "Bearer secret"}
    for path in ("/sleep?mode=wait", "/wake_up?tags=weights"):
        got = await call(setting.app, "POST", path, headers=key)
        assert got.status == 400 and got.json["error"]["param"] in path
    got = await call(setting.app, "POST", "/sleep?level=0", headers=key)
    assert got.status == 400 and got.json["error"]["param"] == "level"
    got = await call(setting.app, "POST", "/v1/ridgeline/reload", b'{"where": "x"}', key)
    assert got.status == 400


def held_bytes(root: int) -> int:
    """Resident bytes of a process and its children."""
    def of(pid: int) -> int:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") + sum(of(int(child)) for child in children)

    return of(root)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_real_server(tmp_path: Path) -> None:
    """Memory falls while it sleeps, and a prompt that was cached under old weights says what new ones say."""
    a, b = saved_folder(tmp_path / "a", seed=1), saved_folder(tmp_path / "b", seed=2)
    words = ("--enable-sleep-mode", "--kv-cache-bytes", "64MB", "--threads", "1", "--served-model-name", "m")
    asked = {"temperature": 0, "max_tokens": 8, "logprobs": 1, "ignore_eos": True}
    prompt = "a prompt that fills some blocks of the cache, and then some more of them"
    with serving(str(b), *words) as server:
        expected = server.complete(prompt, **asked)["choices"][0]["text"]
    with serving(str(a), *words) as server:
        before = [server.complete(prompt, **asked)["choices"][0]["text"] for _ in range(2)]
        assert server.metrics()["vllm:prefix_cache_hits_total"] > 0 and before[0] == before[1] != expected
        awake = held_bytes(server.process.pid)
        assert server.post("/sleep?level=2", {}).status_code == 200
        asleep = held_bytes(server.process.pid)
        print(f"{awake / 1e6:.0f} MB awake, {asleep / 1e6:.0f} MB asleep")
        assert asleep < awake - 100e6 and not server.children()
        assert server.post("/v1/ridgeline/reload", {"path": str(b)}).status_code == 200
        begun_s = time.monotonic()
        assert server.complete(prompt, **asked)["choices"][0]["text"] == expected
        assert time.monotonic() - begun_s < 30
