"""An engine that dies is started again, in a bounded row; its users are told the truth all the while."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ridgeline.base.clock import VirtualClock
from ridgeline.base.errors import ConfigError, EngineDeadError, RequestError
from ridgeline.frontend.keeper import EngineKeeper
from ridgeline.spec.sampling import SamplingParams


class Engine:
    """A client whose engine dies when it is told to."""

    def __init__(self, number: int, gone_folder: str = "") -> None:
        self.info: dict[str, Any] = {"number": number, "adapters": [{"name": "given", "path": "/given"}]}
        self.adapters = {"given": "/given"}
        self.gone_folder = gone_folder
        self.dead: str | None = None
        self.closed = False
        self._over = asyncio.Event()

    def die(self, why: str = "killed") -> None:
        self.dead = why
        self._over.set()

    async def gone(self) -> str:
        await self._over.wait()
        assert self.dead is not None
        return self.dead

    async def ask(self, what: str) -> dict[str, Any]:
        return self.info

    async def load_adapter(self, name: str, path: str, *, replace: bool) -> dict[str, str]:
        if path == self.gone_folder:
            raise RequestError("no such folder")
        if path == "/deadly" and self.info["number"] == 2:
            raise EngineDeadError("killed")
        assert name not in self.adapters or replace
        self.adapters[name] = path
        return {"name": name, "path": path}

    async def unload_adapter(self, name: str) -> None:
        del self.adapters[name]

    async def close(self, *, timeout_s: float = 5.0) -> None:
        self.closed = True


class Factory:
    """Starts engines; those whose number is in `broken` do not start."""

    def __init__(self, *broken: int) -> None:
        self.engines: list[Engine] = []
        self.broken = broken
        self.gone = ""
        self.num_started = 0

    async def __call__(self) -> Any:
        self.num_started += 1
        if self.num_started in self.broken:
            raise ConfigError("the model is gone")
        self.engines.append(Engine(self.num_started, self.gone))
        return self.engines[-1]


async def _until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not what():
            await asyncio.sleep(0.001)


def test_the_next_engine_serves_and_the_dead_one_is_closed() -> None:
    async def work() -> None:
        factory = Factory()
        keeper = EngineKeeper(await factory(), factory, pauses_s=(0.0, 0.05))
        assert (await keeper.ask("info"))["number"] == 1 and keeper.dead is None
        for number in (1, 2):
            factory.engines[-1].die()
            assert keeper.dead == "killed", "before anybody has been told"
            with pytest.raises(EngineDeadError):
                keeper.submit("late", [1], SamplingParams())
            await _until(lambda: keeper.dead is None)
            assert keeper.num_restarts == number and keeper.info["number"] == number + 1
            assert factory.engines[-2].closed and not factory.engines[-1].closed
        await keeper.close()
        assert factory.engines[-1].closed and keeper.dead == "the engine was closed"

    asyncio.run(work())


def test_a_row_of_deaths_ends() -> None:
    """Starts that fail count as well; then all is lost, and says so."""

    async def work() -> None:
        factory = Factory(3)
        keeper = EngineKeeper(await factory(), factory, pauses_s=(0.0, 0.0, 0.0))
        for engine in (1, 2):
            await _until(lambda number=engine: len(factory.engines) == number)
            factory.engines[-1].die()
            await asyncio.sleep(0)
        await _until(lambda: factory.num_started == 4 and keeper.dead is None)
        factory.engines[-1].die("killed by SIGSEGV")
        reason = await asyncio.wait_for(keeper.lost(), 5)
        assert reason == keeper.dead == "killed by SIGSEGV; it is given up, after 3 starts in a row"
        assert factory.num_started == 4 and keeper.num_restarts == 2
        with pytest.raises(EngineDeadError, match="given up"):
            await keeper.ask("stats")
        await keeper.close()

    asyncio.run(work())


def test_an_engine_that_lived_long_begins_a_new_row() -> None:
    async def work() -> None:
        factory, clock = Factory(), VirtualClock()
        keeper = EngineKeeper(await factory(), factory, pauses_s=(0.0,), steady_s=60.0, clock=clock)
        await asyncio.sleep(0)
        for number in range(1, 5):
            clock.advance_to(60.0 * number)
            factory.engines[-1].die()
            await _until(lambda number=number: keeper.num_restarts == number)
        factory.engines[-1].die()
        assert "given up" in await asyncio.wait_for(keeper.lost(), 5)
        await keeper.close()

    asyncio.run(work())


def test_an_end_in_the_middle_of_a_start_leaves_nothing() -> None:
    async def work() -> None:
        factory = Factory()
        keeper = EngineKeeper(await factory(), factory, pauses_s=(60.0,))
        factory.engines[0].die()
        await _until(lambda: "started again" in str(keeper.dead))
        await keeper.close()
        assert factory.num_started == 1 and factory.engines[0].closed

    asyncio.run(work())


def test_adapters_are_the_next_engines_too() -> None:
    """Those that calls have loaded, unloaded and exchanged; one whose folder is gone costs the others
    nothing."""
    async def work() -> None:
        factory = Factory()
        keeper = EngineKeeper(await factory(), factory, pauses_s=(0.0,))
        await keeper.load_adapter("lost", "/lost", replace=False)
        await keeper.load_adapter("more", "/more", replace=False)
        await keeper.load_adapter("given", "/other", replace=True)
        await keeper.load_adapter("short", "/short", replace=False)
        await keeper.unload_adapter("short")
        factory.gone = "/lost"
        factory.engines[0].die()
        await _until(lambda: keeper.num_restarts == 1)
        assert factory.engines[1].adapters == {"given": "/other", "more": "/more"}
        await keeper.close()

    asyncio.run(work())


def test_an_engine_that_dies_of_an_adapter_is_closed_and_followed_by_another() -> None:
    async def run() -> None:
        factory = Factory()
        keeper = EngineKeeper(await factory(), factory, pauses_s=(0.0, 0.0))
        await keeper.load_adapter("a", "/deadly", replace=False)
        factory.engines[0].die()
        await _until(lambda: len(factory.engines) == 3 and keeper.dead is None)
        assert [engine.closed for engine in factory.engines] == [True, True, False]
        assert factory.engines[2].adapters == {"given": "/given", "a": "/deadly"}
        await keeper.close()

    asyncio.run(run())
