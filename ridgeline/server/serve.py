"""`ridgeline serve`: one process with HTTP over one engine process."""

import asyncio
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.sockets import bound
from ridgeline.frontend.client import ENGINE
from ridgeline.schedule.policies.table import takes_priority
from ridgeline.server.config import ServerConfig
from ridgeline.server.spans import Spans, otlp
from ridgeline.server.start import start

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanProcessor
    from starlette.routing import BaseRoute

_LOG = logging.getLogger("ridgeline.server")
T = TypeVar("T")
_DATES = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
Pages = Callable[[], Sequence["BaseRoute"]]


def serve(config: EngineConfig, settings: ServerConfig, pages: Pages, *, engine: str = ENGINE) -> int:
    """Serve until SIGTERM or SIGINT; a second one ends what is still at work. Returns the exit code: 1 when
    the engine died so often that it was given up.

    pages: makes the routes that the server carries beside its own; called beside the load, in a thread.
    engine: the module that runs as the engine's process.

    Raises RidgelineError before anything listens when the address is taken or the model cannot be served.
    """
    if not takes_priority(config.policy) and any(
        key.priority is not None for key in settings.api_keys
    ):
        raise ConfigError("API keys with priorities need a policy that looks at them: set "
                          "--policy priority or slo")
    check_certificate(settings.ssl_certfile, settings.ssl_keyfile)
    exporter = None if settings.otlp_endpoint is None else otlp(settings.otlp_endpoint)
    with bound(settings.host, settings.port) as listener:
        lost = run(_serve(config, settings, pages, listener, exporter, engine))
    if lost is not None:
        print(f"ridgeline serve: error: {lost}", file=sys.stderr)
    return 0 if lost is None else 1


async def _serve(
    config: EngineConfig, settings: ServerConfig, pages: Pages, listener: socket.socket,
    exporter: "SpanProcessor | None", engine: str,
) -> str | None:  # fmt: skip
    hung_up = asyncio.Event()
    if settings.reread_keys is not None:  # from here on SIGHUP ends nothing; `listen` looks at it
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)
    http = asyncio.create_task(asyncio.to_thread(import_module, "ridgeline.server.listen"))
    made = asyncio.create_task(asyncio.to_thread(pages))
    asyncio.get_running_loop().set_exception_handler(log_unhandled)
    async with start(
        config, name=settings.served_name, stall_s=settings.stall_s, logs=settings.logs,
        limits=settings.limits, engine=engine,
    ) as running:
        spans = None if exporter is None else Spans(exporter, running.api.served.card.id)
        if spans is not None:
            running.api.listeners.append(spans.ended)
        try:
            lost: str | None = await (await http).listen(
                running, settings, await made, listener, hung_up
            )
        finally:
            if spans is not None:
                await asyncio.to_thread(spans.close)
    return lost


def check_certificate(certfile: Path | None, keyfile: Path | None) -> None:
    """ConfigError for files that cannot be served with: told now, and not to the first client."""
    if certfile is None:
        if keyfile is not None:
            raise ConfigError("--ssl-keyfile does nothing alone: give its certificate by --ssl-certfile")
        return
    for path in (certfile, keyfile or certfile):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(f"the TLS files cannot be read: {error}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certfile, keyfile, password="")
    except ssl.SSLError as error:
        raise ConfigError(
            f"{certfile} and {keyfile or 'the key in it'} cannot be served with ({error.reason or error}): "
            "both must be PEM, the key that of the certificate, and not encrypted"
        ) from None
    if trouble := _outdated(context, certfile):
        _LOG.warning("%s: %s; clients that look will not connect", certfile, trouble)


def _outdated(serving: ssl.SSLContext, certfile: Path) -> str | None:
    """What a client that trusts this certificate says of its dates, if anything."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_flags = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    asking.load_verify_locations(certfile)
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = asking.wrap_bio(here, there), serving.wrap_bio(there, here, server_side=True)
    for _ in range(2):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                return error.verify_message if error.verify_code in _DATES else None
    return None


def log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio caught for nobody, without the words of asyncio's own record: they may quote a request."""
    _LOG.error("%s", context["message"], exc_info=context.get("exception"))


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, on uvloop where it is installed: that halves the cost of a streamed token."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
