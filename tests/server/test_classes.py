"""Protects who comes first: a key's priority, which its requests cannot jump, tenants by key, and a 429 that
says when to come again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.base.clock import VirtualClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.server.app import build_app
from ridgeline.server.config import ServerConfig
from ridgeline.server.health import Health
from ridgeline.server.keys import Keys, plain, read_keys
from ridgeline.server.serve import serve
from tests.server.asgi import call
from tests.server.fake import fake_api, keyring

pytestmark = pytest.mark.anyio
KEYS = [replace(plain(key), priority=rank) for key, rank in (("gold", -5), ("plain", None), ("batch", 10))]


@pytest.mark.parametrize(("key", "asked", "got"), [
    ("gold", None, -5), ("gold", -9, -5), ("gold", 3, 3), ("plain", None, 0), ("plain", -9, -9),
    ("plain", 4, 4), ("batch", None, 10), ("batch", 0, 10), ("batch", 11, 11),
])  # fmt: skip
async def test_a_request_is_never_sooner_than_its_key(key: str, asked: int | None, got: int) -> None:
    api, engine = fake_api(takes_priority=True)
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=Keys(KEYS))
    body = json.dumps({"prompt": "a", "priority": asked}).encode()
    answer = await call(app, "POST", "/v1/completions", body, {"authorization": f"Bearer {key}"})
    assert answer.status == 200 and engine.ranks[0][0] == got


async def test_an_expected_answer_reaches_the_engine_and_is_checked() -> None:
    api, engine = fake_api()
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=Keys([]))
    for path, given in (("completions", {"prompt": "a"}),
                        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        for more, status in (({}, 200), ({"predicted_output_tokens": 7}, 200),
                             ({"predicted_output_tokens": -1}, 400)):
            answer = await call(app, "POST", f"/v1/{path}", json.dumps(given | more).encode(), {})
            assert answer.status == status, answer
    assert engine.predicted == [None, 7, None, 7]


async def test_each_key_is_a_tenant_whose_name_does_not_show_it() -> None:
    api, engine = fake_api()
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=Keys(KEYS))
    for key in ("gold", "plain", "gold"):
        await call(app, "POST", "/v1/completions", b'{"prompt": "a"}', {"authorization": f"Bearer {key}"})
    first, second, third = (tenant for _, tenant in engine.ranks)
    assert first == third != second and first and "gold" not in first


@pytest.mark.parametrize("stream", [False, True])
async def test_who_is_sent_away_hears_when_to_come_again(stream: bool) -> None:
    """Before any event of a stream, and it counts neither as good nor as an error of ours."""
    api, engine = fake_api()
    engine.shed = True
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=keyring())
    body = json.dumps({"prompt": "a", "stream": stream}).encode()
    answer = await call(app, "POST", "/v1/completions", body)
    assert answer.status == 429 and answer.headers["retry-after"] == "8"
    assert answer.json["error"]["code"] == "overloaded" and "late" in answer.json["error"]["message"]
    assert answer.json["error"]["type"] == "rate_limit_error"
    assert api.metrics.finished["shed"] == 1 and api.live.data()["goodput"]["good"] == 0
    account = await call(app, "GET", "/v1/ridgeline/requests/" + answer.headers["x-request-id"])
    assert account.json["choices"][0]["finish_reason"] == "shed" and account.json["choices"][0]["late"] == 1


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# who may\ngold -5\n\n  plain  # no class\nbatch 10\n")
    assert read_keys(path) == KEYS
    for wrong in ("a b", "a 1 2", "gold\ngold", "a 1.5", "a ٣", "a 9999999999", "sha256:0f"):
        path.write_text("# first\n" + wrong)
        with pytest.raises(ConfigError, match=f"line {1 + len(wrong.splitlines())}") as error:
            read_keys(path)
        assert "gold" not in str(error.value), "a message shows no key"
    path.write_text("# nobody\n")
    with pytest.raises(ConfigError, match="holds no API key"):
        read_keys(path)
    path.write_bytes(b"\xff\xfe")
    for missing in (path, tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_keys(missing)


def test_priorities_of_keys_need_a_policy_that_looks_at_them() -> None:
    with pytest.raises(ConfigError, match="--policy priority"):
        serve(EngineConfig(), ServerConfig(api_keys=tuple(KEYS)), tuple)
