"""Protects the sockets of a server: HTTPS with a certificate of one's own, keys and their limits as a client
meets them, the greeting, and an end in order. The engine is a stand-in."""

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.sockets import bound
from ridgeline.server.config import ServerConfig
from ridgeline.server.keys import Key, plain
from ridgeline.server.listen import listen
from ridgeline.server.serve import check_certificate, serve
from ridgeline.server.start import Running
from tests.server.certificate import write_certificate
from tests.server.fake import fake_api

pytestmark = pytest.mark.anyio
INFO = {
    "version": "0", "family": "fake", "num_params": 1, "weights_bytes": 1, "kv_cache_bytes": 1,
    "num_pages": 1, "page_bytes": 1, "block_tokens": 1, "max_request_tokens": 1,
    "max_model_len": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1,
}  # fmt: skip


@asynccontextmanager
async def _listening(**settings: Any) -> AsyncIterator[tuple[str, Any]]:
    """The address of a server around a stand-in, and the stand-in; ends it by SIGTERM."""
    api, engine = fake_api()
    running = Running(api=api, client=engine, info=INFO, seconds={"total": 1.0})  # type: ignore[arg-type]
    hung_up = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)
    with bound("127.0.0.1", 0) as listener:
        task = asyncio.create_task(listen(running, ServerConfig(**settings), (), listener, hung_up))
        scheme = "https" if settings.get("ssl_certfile") else "http"
        try:
            yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", engine
        finally:
            if not task.done():
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(task, 10)


def _trusting(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate)
    return context


async def _up(client: httpx.AsyncClient) -> None:
    for _ in range(200):
        try:
            assert (await client.get("/health")).status_code == 200
            return
        except httpx.ConnectError:
            await asyncio.sleep(0.01)
    raise AssertionError("it does not listen")


async def test_https_with_a_self_signed_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole and streamed; a client that does not know the certificate, or speaks plain HTTP, gets nothing."""
    certificate, key = write_certificate(tmp_path)
    async with _listening(ssl_certfile=certificate, ssl_keyfile=key) as (url, engine):
        async with httpx.AsyncClient(base_url=url, verify=_trusting(certificate)) as client:
            await _up(client)
            for stream in (False, True):
                got = await client.post("/v1/completions", json={"prompt": "a", "stream": stream})
                assert got.status_code == 200 and "x-request-id" in got.headers
                assert got.content.endswith(b"data: [DONE]\n\n") == stream
        async with httpx.AsyncClient() as stranger:
            with pytest.raises(httpx.ConnectError):
                await stranger.get(f"{url}/health")
            with pytest.raises(httpx.HTTPError):
                await stranger.get(f"{url.replace('https', 'http')}/health")
        assert len(engine.submitted) == 2
    said = capsys.readouterr().out
    assert f"on {url}/v1" in said
    assert "everybody, without a key; CORS off; bodies up to 8.39 MB, 128 deep" in said


async def test_a_client_over_its_limit_hears_when_to_come_again() -> None:
    """OpenAI's own client understands the refusal; another key is served meanwhile."""
    keys = (replace(plain("one"), max_concurrent=1), plain("two"))
    async with _listening(api_keys=keys) as (url, engine), httpx.AsyncClient(base_url=url) as probe:
        await _up(probe)
        engine.gate = asyncio.Event()
        one, two = (openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
                    for key in ("one", "two"))
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        first = asyncio.create_task(one.chat.completions.create(**asked))
        while not engine.open:
            await asyncio.sleep(0.001)
        with pytest.raises(openai.RateLimitError) as refused:
            await one.chat.completions.create(**asked)
        assert refused.value.code == "rate_limit_exceeded"
        assert refused.value.response.headers["retry-after"] == "1"
        other = asyncio.create_task(two.chat.completions.create(**asked))
        engine.gate.set()
        for answer in (await first, await other, await one.chat.completions.create(**asked)):
            assert answer.choices[0].message.content == "hello"
        await one.close()
        await two.close()


async def test_keys_are_read_again_at_sighup(caplog: pytest.LogCaptureFixture) -> None:
    """A key that is gone opens nothing more, one that stays goes on with what it has used; a mistake changes
    nothing."""
    old = replace(plain("old"), requests_per_minute=2)
    found: list[tuple[Key, ...]] = [(old, plain("new")), ()]

    def read() -> tuple[Key, ...]:
        if keys := found.pop(0):
            return keys
        raise ConfigError("it holds no API key")

    async with (
        _listening(api_keys=(old, plain("gone")), reread_keys=read) as (url, _),
        httpx.AsyncClient(base_url=url) as client,
    ):
        await _up(client)

        async def status(key: str) -> int:
            answer = await client.post("/tokenize", json={"prompt": "a"}, headers={"x-api-key": key})
            return answer.status_code

        assert [await status(key) for key in ("old", "gone", "new")] == [200, 200, 401]
        os.kill(os.getpid(), signal.SIGHUP)
        while len(found) == 2:
            await asyncio.sleep(0.001)
        assert [await status(key) for key in ("old", "gone", "new", "old")] == [200, 401, 200, 429]
        os.kill(os.getpid(), signal.SIGHUP)
        while found:
            await asyncio.sleep(0.001)
        assert await status("new") == 200
    assert "the API keys stay as they were: it holds no API key" in caplog.text


def test_a_sighup_while_the_model_loads_is_kept_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends nothing: the keys are read again once there is a server that has them."""
    api, engine = fake_api()
    running = Running(api=api, client=engine, info=INFO, seconds={"total": 1.0})  # type: ignore[arg-type]

    @asynccontextmanager
    async def loading(*_: Any, **__: Any) -> AsyncIterator[Running]:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)
        yield running

    def read() -> tuple[Key, ...]:
        os.kill(os.getpid(), signal.SIGTERM)
        return (plain("new"),)

    monkeypatch.setattr("ridgeline.server.serve.start", loading)
    settings = ServerConfig(port=0, api_keys=(plain("old"),), reread_keys=read)
    assert serve(EngineConfig(), settings, tuple) == 0


async def test_a_budget_that_no_token_ends_is_refused_at_the_start() -> None:
    api, engine = fake_api()
    api.served = replace(api.served, thinks=True)
    running = Running(api=api, client=engine, info=INFO, seconds={"total": 1.0})  # type: ignore[arg-type]
    settings = ServerConfig(api_keys=(replace(plain("a"), thinking_budget=5),))
    with bound("127.0.0.1", 0) as listener, pytest.raises(ConfigError, match="thinking_budget"):
        await listen(running, settings, (), listener, asyncio.Event())


@pytest.mark.parametrize(("since", "until", "says"), [
    ("200101", "210101", "expired"), ("490101", "491231", "not yet valid"), ("200101", "491231", ""),
])  # fmt: skip
def test_a_certificate_out_of_its_time_is_said(
    since: str, until: str, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = write_certificate(tmp_path, since=since, until=until)
    check_certificate(certificate, key)
    assert says in caplog.text and bool(caplog.text) is bool(says)


def test_wrong_certificates_are_told_at_the_start(tmp_path: Path) -> None:
    """Before anything is loaded, in one line that names the file."""
    certificate, key = write_certificate(tmp_path)
    (tmp_path / "b").mkdir()
    _, other = write_certificate(tmp_path / "b")
    text = tmp_path / "text"
    text.write_text("no PEM")
    both = tmp_path / "both"
    both.write_text(certificate.read_text() + key.read_text())
    check_certificate(certificate, key)
    check_certificate(both, None)
    check_certificate(None, None)
    for files, says in (
        ((certificate, other), "KEY_VALUES_MISMATCH"), ((certificate, text), "PEM"), ((text, key), "PEM"),
        ((certificate, None), "PEM"), ((certificate, tmp_path / "none"), "none"),
        ((None, key), "--ssl-certfile"), ((tmp_path, key), "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=says) as error:
            serve(EngineConfig(), ServerConfig(ssl_certfile=files[0], ssl_keyfile=files[1]), tuple)
        assert "\n" not in str(error.value)
