"""The engine process with a tiny random model: its start, its death, and what it leaves behind."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError, EngineDeadError, RequestError
from ridgeline.frontend.client import EngineClient
from ridgeline.spec.sampling import SamplingParams
from tests.engine.tiny import tiny_folder

LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = tiny_folder(tmp_path_factory.mktemp("tiny"))
    return EngineConfig(model=str(folder), load_format="dummy", dtype="float32", threads=1, max_num_seqs=8)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the sockets' folders of this test are made; none is there afterwards."""
    place = tmp_path / "sockets"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert not list(place.iterdir())


def shared_memory(pid: int) -> list[str]:
    """What a process left in shared memory, by torch's and Python's way of naming it."""
    return [name for name in os.listdir("/dev/shm") if f"_{pid}_" in name or name.endswith(f"-{pid}")]


def process_of(client: EngineClient) -> asyncio.subprocess.Process:
    assert client._process is not None
    return client._process


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


async def tokens(client: EngineClient, name: str, params: SamplingParams) -> list[int]:
    async with aclosing(client.submit(name, [3, 4, 5], params)) as news:
        return [token async for one in news for token in one.new_tokens]


def test_a_whole_life(config: EngineConfig) -> None:
    """Start, serve several at once, close: no process, socket or shared memory stays."""

    async def work() -> int:
        client = await EngineClient.start(config)
        pid = process_of(client).pid
        try:
            assert client.info["max_model_len"] == 256 and client.info["vocab_size"] == 264
            results = await asyncio.gather(*(tokens(client, str(i), SHORT) for i in range(12)))
            assert len(results[0]) == 4 and all(result == results[0] for result in results)
            with pytest.raises(RequestError):
                await tokens(client, "bad", SamplingParams(temperature=-1.0))
            stream = client.submit("open", [3], LONG)
            await anext(stream)
            stats = await client.ask("stats")
            assert stats["num_running"] == 1 and stats["num_malformed"] == 0
        finally:
            await client.close()
        with suppress(EngineDeadError):  # its last news may have come before the end
            assert [news async for news in stream][-1].finish == "abort"
        return pid

    pid = asyncio.run(asyncio.wait_for(work(), 90))
    assert gone(pid) and not shared_memory(pid)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_death_is_told_at_once(config: EngineConfig, how: signal.Signals) -> None:
    """kill -9 of the engine: whoever waits, and whoever comes later, gets EngineDeadError."""

    async def work() -> None:
        client = await EngineClient.start(config)
        try:
            streams = [client.submit(str(i), [3], LONG) for i in range(4)]
            for stream in streams:
                await anext(stream)
            os.kill(process_of(client).pid, how)
            killed_s = time.monotonic()
            for stream in streams:
                if how == signal.SIGKILL:
                    with pytest.raises(EngineDeadError, match="SIGKILL"):
                        _ = [news async for news in stream]
                else:
                    assert [news async for news in stream][-1].finish in ("abort", "length")
            while client.dead is None:
                await asyncio.sleep(0.01)
            # an orderly end takes torch down too, which is slow on a busy machine
            assert time.monotonic() - killed_s < (3 if how == signal.SIGKILL else 20)
            with pytest.raises(EngineDeadError):
                await tokens(client, "late", SHORT)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(work(), 90))


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    """The engine's own words reach whoever started it, and nothing stays."""
    broken = tiny_folder(tmp_path / "broken", num_attention_heads=5)

    async def work() -> None:
        with pytest.raises(ConfigError, match="no folder or file"):
            await EngineClient.start(EngineConfig(model=str(tmp_path / "nowhere"), load_format="dummy"))
        with pytest.raises(ConfigError):
            await EngineClient.start(EngineConfig(model=str(broken), load_format="dummy"))

    asyncio.run(asyncio.wait_for(work(), 90))


def test_the_engine_does_not_outlive_its_parent(config: EngineConfig, tmp_path: Path, folders: Path) -> None:
    """kill -9 of the API process: the engine ends within seconds and takes its socket along."""
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from ridgeline.base.config import EngineConfig
        from ridgeline.frontend.client import EngineClient
        async def work():
            config = EngineConfig(model={config.model!r}, load_format="dummy", threads=1)
            client = await EngineClient.start(config)
            print(client._process.pid, flush=True)
            await asyncio.sleep(100)
        asyncio.run(work())
    """)
    )
    command, root = [sys.executable, str(script)], Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=root, env=os.environ | {"TMPDIR": str(folders)}
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline_s = time.monotonic() + 10
    while not gone(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert gone(pid) and not shared_memory(pid)
