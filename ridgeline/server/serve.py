"""`ridgeline serve`: one process with HTTP over one engine process."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Iterator
from importlib import import_module
from typing import Any

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.server.config import ServerConfig
from ridgeline.server.start import start


def serve(config: EngineConfig, settings: ServerConfig) -> int:
    """Serve until SIGTERM or SIGINT; a second one ends what is still at work. Returns the exit code.

    Raises RidgelineError before anything listens when the address is taken or the model cannot be served.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    with _bound(settings.host, settings.port) as listener:
        run(_serve(config, settings, listener))
    return 0


async def _serve(config: EngineConfig, settings: ServerConfig, listener: socket.socket) -> None:
    http = asyncio.create_task(asyncio.to_thread(import_module, "ridgeline.server.listen"))
    async with start(config, name=settings.served_name, stall_s=settings.stall_s) as running:
        await (await http).listen(running, settings, listener)


def run(main: Coroutine[Any, Any, None]) -> None:
    """asyncio.run, on uvloop where it is installed: that halves the cost of a streamed token."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """An address of our own that nobody can connect to yet: it listens once the model is there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot use {host} port {port}: {error}; choose another --host or --port"
            ) from None
        yield listener
