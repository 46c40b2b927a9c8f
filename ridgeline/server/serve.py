"""`ridgeline serve`: one process with HTTP over one engine process."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.sockets import bound
from ridgeline.server.config import ServerConfig
from ridgeline.server.spans import Spans, otlp
from ridgeline.server.start import start

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanProcessor
    from starlette.routing import BaseRoute

Pages = Callable[[], Sequence["BaseRoute"]]


def serve(config: EngineConfig, settings: ServerConfig, pages: Pages) -> int:
    """Serve until SIGTERM or SIGINT; a second one ends what is still at work. Returns the exit code.

    pages: makes the routes that the server carries beside its own; called beside the load, in a thread.

    Raises RidgelineError before anything listens when the address is taken or the model cannot be served.
    """
    if config.policy != "priority" and any(
        key.priority is not None for key in settings.api_keys
    ):
        raise ConfigError("API keys with priorities need a policy that looks at them: set --policy priority")
    exporter = None if settings.otlp_endpoint is None else otlp(settings.otlp_endpoint)
    with bound(settings.host, settings.port) as listener:
        run(_serve(config, settings, pages, listener, exporter))
    return 0


async def _serve(
    config: EngineConfig, settings: ServerConfig, pages: Pages, listener: socket.socket,
    exporter: "SpanProcessor | None",
) -> None:  # fmt: skip
    http = asyncio.create_task(asyncio.to_thread(import_module, "ridgeline.server.listen"))
    made = asyncio.create_task(asyncio.to_thread(pages))
    async with start(config, name=settings.served_name, stall_s=settings.stall_s) as running:
        spans = None if exporter is None else Spans(exporter, running.api.served.card.id)
        if spans is not None:
            running.api.listeners.append(spans.ended)
        try:
            await (await http).listen(running, settings, await made, listener)
        finally:
            if spans is not None:
                await asyncio.to_thread(spans.close)


def run(main: Coroutine[Any, Any, None]) -> None:
    """asyncio.run, on uvloop where it is installed: that halves the cost of a streamed token."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
