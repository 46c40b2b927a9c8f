"""An engine that is started again when it dies: whoever waits then is told, whoever comes later is served.

Owns the clients of one engine after another. A crash loop ends: pauses grow, and there are only so many.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from ridgeline.base.clock import Clock, WallClock
from ridgeline.base.errors import EngineDeadError, RequestError, RidgelineError
from ridgeline.frontend.client import EngineClient
from ridgeline.frontend.inbox import AtOnce
from ridgeline.frontend.protocol import News
from ridgeline.spec.sampling import SamplingParams

PAUSES_S = (0.0, 1.0, 5.0, 15.0, 30.0)  # before each start in a row
STEADY_S = 300.0  # an engine that lived as long begins a new row
_log = logging.getLogger("ridgeline.server")


class EngineKeeper:
    """One engine to its users, in place of its client. Make it with `start`, end it with `close`.

    num_restarts: since the start.
    """

    def __init__(
        self, client: EngineClient, start: Callable[[], Awaitable[EngineClient]], *,
        pauses_s: Sequence[float] = PAUSES_S, steady_s: float = STEADY_S, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.num_restarts = 0
        self._client = client
        self._start = start
        self._pauses_s = pauses_s
        self._steady_s = steady_s
        self._clock = clock or WallClock()
        self._adapters = _adapters(client)  # what an engine has loaded, by name
        self._trouble: str | None = None  # while there is no engine
        self._lost = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep())

    @classmethod
    async def start(cls, start: Callable[[], Awaitable[EngineClient]]) -> "EngineKeeper":
        """The first engine; what keeps it from starting is raised, and not tried again."""
        return cls(await start(), start)

    async def close(self) -> None:
        """End for good: what still waits gets EngineDeadError."""
        self._trouble = self._trouble or "the engine was closed"
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        await self._client.close()

    async def rest(self, why: str) -> None:
        """End the engine on purpose; until `resume` nobody starts it."""
        self._trouble = why
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        await self._client.close()

    async def resume(self, start: Callable[[], Awaitable[EngineClient]]) -> None:
        """Start an engine after `rest`, from now on by `start`. What keeps it from starting is raised, and
        there is none then."""
        self._client = await self._started(start)
        self._start, self._trouble = start, None
        self._keeping = asyncio.create_task(self._keep())

    async def lost(self) -> str:
        """Waits until there is no engine and will be none; why."""
        return await asyncio.shield(self._lost)

    @property
    def info(self) -> Mapping[str, Any]:
        """What the newest engine says of itself."""
        return self._client.info

    @property
    def dead(self) -> str | None:
        """Why the engine cannot be used now, or None."""
        return self._trouble or self._client.dead

    def submit(
        self, request_id: str, prompt: Sequence[int], params: SamplingParams, *, priority: int = 0,
        cache_salt: str = "", tenant: str = "", adapter: str = "", arrived_s: float | None = None,
        predicted_output: int | None = None, at_once: AtOnce | None = None,
    ) -> AsyncGenerator[News, None]:  # fmt: skip
        """As EngineClient.submit, of the engine that is there now."""
        self._check()
        return self._client.submit(
            request_id, prompt, params, priority=priority, cache_salt=cache_salt, tenant=tenant,
            adapter=adapter, arrived_s=arrived_s, predicted_output=predicted_output, at_once=at_once,
        )  # fmt: skip

    def abort(self, request_id: str, choice: int | None = None, keep_tokens: int | None = None) -> None:
        """As EngineClient.abort; what another engine was asked for is unknown to this one, and passes."""
        self._client.abort(request_id, choice, keep_tokens)

    async def ask(self, what: str) -> Mapping[str, Any]:
        """As EngineClient.ask."""
        self._check()
        return await self._client.ask(what)

    async def load_adapter(self, name: str, path: str, *, replace: bool) -> Mapping[str, Any]:
        """As EngineClient.load_adapter, of this engine and of those after it."""
        self._check()
        info = await self._client.load_adapter(name, path, replace=replace)
        self._adapters[name] = path
        return info

    async def unload_adapter(self, name: str) -> None:
        """As EngineClient.unload_adapter, of this engine and of those after it."""
        self._check()
        await self._client.unload_adapter(name)
        del self._adapters[name]

    def _check(self) -> None:
        if self.dead is not None:
            raise EngineDeadError(self.dead)

    async def _keep(self) -> None:
        pauses = iter(self._pauses_s)
        while True:
            began_s = self._clock.now()
            cause = await self._client.gone()
            if self._clock.now() - began_s >= self._steady_s:
                pauses = iter(self._pauses_s)
            self._trouble = cause
            await self._client.close(timeout_s=0.0)
            client = await self._next(cause, pauses)
            if client is None:
                return
            self._client, self._trouble = client, None
            self.num_restarts += 1
            _log.warning("the engine serves again")

    async def _next(self, cause: str, pauses: Iterator[float]) -> EngineClient | None:
        """The next engine, after what is left of the pauses; None, and all is lost, when that is nothing."""
        for pause_s in pauses:
            _log.error("%s; it is started again in %g s", cause, pause_s)
            self._trouble = f"{cause}; it is being started again"
            await asyncio.sleep(pause_s)
            try:
                return await self._started(self._start)
            except (RidgelineError, EngineDeadError, OSError) as error:
                cause = str(error)
        self._trouble = f"{cause}; it is given up, after {len(self._pauses_s)} starts in a row"
        self._lost.set_result(self._trouble)
        return None

    async def _started(self, start: Callable[[], Awaitable[EngineClient]]) -> EngineClient:
        """A new engine with the adapters of the last one; one that dies on the way leaves nothing."""
        client = await start()
        try:
            await self._adapt(client)
        except BaseException:
            await client.close(timeout_s=0.0)
            raise
        return client

    async def _adapt(self, client: EngineClient) -> None:
        """Give a new engine the adapters of the last one, which calls have changed since the start."""
        found = _adapters(client)
        for name in [name for name, path in found.items() if self._adapters.get(name) != path]:
            await client.unload_adapter(name)
        for name, path in self._adapters.items():
            if found.get(name) != path:
                try:
                    await client.load_adapter(name, path, replace=False)
                except RequestError as error:
                    _log.error("the adapter %s is lost: %s", name, error)


def _adapters(client: EngineClient) -> dict[str, str]:
    """The folders of an engine's adapters, by name."""
    return {info["name"]: info["path"] for info in client.info["adapters"]}
