"""What an operator may set about the server itself; the engine's settings are base.config.EngineConfig."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ridgeline.api.limits import LIMITS, Limits
from ridgeline.base.logs import TEXT, LogStyle
from ridgeline.server.keys import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """api_keys: none lets every caller in; reread_keys: what they are by now, asked at each SIGHUP.
    allowed_origins: none turns CORS off.

    shutdown_s: how long requests may finish after SIGTERM. stall_s: how long work may wait without a finished
    step until /health says so and the engine is given up. served_name: the model's name in the API; None: its
    own. otlp_endpoint: where spans of requests go; None: nowhere. ssl_certfile: of PEM, which turns TLS on;
    ssl_keyfile: its key, when that is not in the same file. logs: how the server and its engine log. limits:
    of one request. sleep_mode: admins may put the engine to sleep and give it other weights.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[Key, ...] = ()
    reread_keys: Callable[[], tuple[Key, ...]] | None = None
    allowed_origins: tuple[str, ...] = ()
    served_name: str | None = None
    shutdown_s: float = 30.0
    stall_s: float = 60.0
    otlp_endpoint: str | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    logs: LogStyle = TEXT
    limits: Limits = LIMITS
    sleep_mode: bool = False
