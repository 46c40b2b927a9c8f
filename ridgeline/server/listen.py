"""The HTTP server around the endpoints, and the order of its end. Slow to import, so `serve` does it beside
the load.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import uvicorn
from starlette.routing import BaseRoute

from ridgeline.api.served import Served
from ridgeline.base.clock import WallClock
from ridgeline.base.errors import ConfigError
from ridgeline.base.sockets import url
from ridgeline.frontend.tools.thinking import Tags
from ridgeline.server.app import build_app
from ridgeline.server.banner import banner
from ridgeline.server.config import ServerConfig
from ridgeline.server.heads import HeadsProtocol
from ridgeline.server.health import Health
from ridgeline.server.keys import Key, Keys
from ridgeline.server.start import Running

GRACE_S = 5  # for connections to close once their requests have ended
_LOG = logging.getLogger("ridgeline.server")


async def listen(
    running: Running, settings: ServerConfig, pages: Sequence[BaseRoute], listener: socket.socket,
    hung_up: asyncio.Event,
) -> str | None:  # fmt: skip
    """Accept connections on a bound socket until SIGTERM or SIGINT, and end in order; or until the engine is
    given up: why. hung_up: set at each SIGHUP, maybe before, to read the keys again."""
    _check_keys(settings.api_keys, running.api.served)
    health = Health(running.client, WallClock(), settings.stall_s, running.api.live)
    keys, origins = Keys(settings.api_keys), settings.allowed_origins
    app = build_app(
        running.api, health, keys=keys, origins=origins, pages=pages, log_prompts=settings.logs.prompts,
        rest=running.rest if settings.sleep_mode else None,
    )  # fmt: skip
    options = uvicorn.Config(
        app,
        http=HeadsProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )
    address = url(settings.host, listener, "http" if settings.ssl_certfile is None else "https")
    greeting = banner(running, address, settings)
    say = print if settings.logs.format == "text" else _LOG.info
    server = _Server(options, partial(say, greeting))
    tasks = [
        asyncio.create_task(health.watch()),
        asyncio.create_task(_end_on_signal(server, running, settings.shutdown_s)),
    ]
    if settings.reread_keys is not None:
        tasks.append(asyncio.create_task(
            _reread(hung_up, settings.reread_keys, keys, running.api.served)
        ))  # fmt: skip
    losing = asyncio.create_task(_end_on_loss(server, running))
    gc.collect()
    gc.freeze()  # what is there now stays: a collection need not walk it while streams wait
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in (*tasks, losing):
            task.cancel()
        await asyncio.gather(*tasks, losing, return_exceptions=True)
    return None if losing.cancelled() else losing.result()


def _check_keys(keys: Sequence[Key], served: Served) -> None:
    """A key's priority or budget that would be passed over in silence is refused."""
    if not served.takes_priority and any(key.priority is not None for key in keys):
        raise ConfigError("API keys with priorities need a policy that looks at them: set "
                          "--policy priority or slo")
    capped = any(key.thinking_budget is not None for key in keys)
    if capped and served.thinks and (served.text.tokenizer is None or Tags.of(served.text.tokenizer) is None):
        raise ConfigError("a key has a thinking_budget, and no token could end this model's thoughts: "
                          "leave it out")


async def _reread(
    hung_up: asyncio.Event, read: Callable[[], tuple[Key, ...]], keys: Keys, served: Served
) -> None:
    """The keys as they are read now, whenever asked for."""
    while await hung_up.wait():
        hung_up.clear()
        try:
            fresh = read()
            _check_keys(fresh, served)
        except ConfigError as error:
            _LOG.error("the API keys stay as they were: %s", error)
        else:
            keys.replace(fresh)
            _LOG.info("%d API keys from now on", len(fresh))


class _Server(uvicorn.Server):
    """uvicorn that says when it listens, and has no signal handlers: here a shutdown has an order."""

    def __init__(self, config: uvicorn.Config, greet: Callable[[], None]) -> None:
        super().__init__(config)
        self._greet = greet

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._greet()
        sys.stdout.flush()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _end_on_loss(server: uvicorn.Server, running: Running) -> str:
    """Stop listening when there will be no engine any more; why."""
    reason = await running.client.lost()
    running.api.admission.close()
    server.should_exit = True
    return reason


async def _end_on_signal(server: uvicorn.Server, running: Running, shutdown_s: float) -> None:
    """Close the door, let requests finish until the deadline or a second signal, end the rest, stop
    listening.
    """
    asked: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.put_nowait, number)
    name = (await asked.get()).name
    admission = running.api.admission
    admission.close()
    _LOG.info("%s: no new requests; %d at work may take %g s", name, admission.num_active, shutdown_s)
    waits = [asyncio.create_task(asked.get()), asyncio.create_task(admission.drained(shutdown_s))]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()
    if admission.num_active:
        _LOG.warning("ending %d requests that are still at work", admission.num_active)
        await running.client.close()
    server.should_exit = True
