"""An address to serve on, taken before anything slow is done for it."""

import contextlib
import socket
from collections.abc import Iterator

from ridgeline.base.errors import ConfigError

READER_S = 60.0


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """An address of our own (port 0: a free one) that nobody can connect to until it listens. A peer that
    takes nothing of what is sent to it for READER_S is cut off by the system.

    Raises ConfigError when it is taken or does not exist.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; those accepted inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(READER_S * 1e3))
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot use {host} port {port}: {error}; choose another --host or --port"
            ) from None
        yield listener


def url(host: str, listener: socket.socket, scheme: str = "http") -> str:
    """How a browser on this machine reaches a bound socket."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"
