"""An engine that sleeps, wakes and takes other weights, by an operator's word: for training beside serving.

Owns the order: the door is shut, what runs is waited for, the engine's process ends and with it every byte of
cache and weights, and a new one starts from nothing, so that no prefix of old weights can be found. Knows no
HTTP.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec

from ridgeline.api.admission import Admission
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError, EngineDeadError, RequestError, RidgelineError
from ridgeline.frontend.client import EngineClient
from ridgeline.frontend.keeper import EngineKeeper
from ridgeline.models.resolve import open_model
from ridgeline.spec.model import ModelSpec

DRAIN_S = 300.0  # how long requests may take to end before a sleep is given up
AWAKE, ASLEEP, LOADING = "awake", "asleep", "loading weights"
Launch = Callable[[EngineConfig], Awaitable[EngineClient]]


class Reload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a reload. path: of the checkpoint, as a start takes it."""

    path: str


class Rest:
    """One at a time; state: AWAKE, ASLEEP or LOADING. spec: of the model that is served."""

    def __init__(self, engine: EngineKeeper, admission: Admission, config: EngineConfig, spec: ModelSpec,
                 launch: Launch) -> None:
        self.state = AWAKE
        self._engine = engine
        self._admission = admission
        self._config = config
        self._spec = spec
        self._launch = launch
        self._one = asyncio.Lock()

    async def sleep(self, drain_s: float = DRAIN_S) -> None:
        """Returns when the memory is given back. RequestError 503 when requests do not end in time: then
        nothing has changed."""
        async with self._one:
            if self.state != ASLEEP:
                await self._end(ASLEEP, drain_s)

    async def wake_up(self) -> None:
        """Returns when requests are served again. RequestError 500, and it sleeps on, when it cannot start.
        """
        async with self._one:
            if self.state == ASLEEP:
                await self._begin(self._config)

    async def reload(self, path: str, drain_s: float = DRAIN_S) -> str:
        """Serve the weights of another checkpoint of the same shape, from sleep too: where they came from.
        RequestError 409 for another shape, and 500 when they cannot be loaded: the old ones serve on in both.
        """
        async with self._one:
            config = replace(self._config, model=path, revision=None)
            root = await asyncio.to_thread(self._check, config)
            if self.state != ASLEEP:
                await self._end(LOADING, drain_s)
            self.state = LOADING
            try:
                await self._begin(config)
            except RequestError as error:
                await self._begin(self._config)
                raise RequestError(f"{error}; the weights before serve on", status=500) from None
            self._config = config
            return root

    def _check(self, config: EngineConfig) -> str:
        try:
            checkpoint = open_model(config.model, load_format=config.load_format,
                                    overrides=config.hf_overrides, revision=None)
        except RidgelineError as error:
            raise RequestError(f"these weights cannot be loaded: {error}", param="path") from None
        found = checkpoint.spec
        if not self._spec.same_shape(found):
            raise RequestError(
                f"this checkpoint ({found.family}, {found.num_params:,} parameters) has another shape than "
                f"what is served ({self._spec.family}, {self._spec.num_params:,}): start a server for it",
                param="path", code="another_shape", status=409)
        return str(checkpoint.path or checkpoint.name)

    async def _end(self, state: str, drain_s: float) -> None:
        self._admission.pause(f"the engine is {state}")
        if not await self._admission.drained(drain_s):
            self._admission.resume()
            raise RequestError(f"{self._admission.num_active} requests did not end within {drain_s:g} s; try "
                               "again", status=503)
        self.state = state
        await self._engine.rest(f"it is {state}")

    async def _begin(self, config: EngineConfig) -> None:
        try:
            await self._engine.resume(lambda: self._launch(config))
        except (ConfigError, EngineDeadError, OSError) as error:
            self.state = ASLEEP
            raise RequestError(f"the engine cannot start: {error}", status=500) from None
        self.state = AWAKE
        self._admission.resume()
