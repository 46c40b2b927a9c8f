"""Calls an ASGI app without a socket, and can vanish in the middle of an answer."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message


@dataclass(slots=True, kw_only=True)
class Got:
    """What the app sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    app: ASGIApp,
    method: str,
    path: str,
    body: bytes | list[bytes] = b"",
    headers: dict[str, str] | None = None,
    *,
    gone: asyncio.Event | None = None,
    leave_after_first_event: bool = False,
) -> Got:
    """One request. gone: the client is away once this is set."""
    gone = gone or asyncio.Event()
    parts = [body] if isinstance(body, bytes) else list(body)
    path, _, query = path.partition("?")
    given = {"content-type": "application/json"} | (headers or {})
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(k.lower().encode(), v.encode()) for k, v in given.items()],
        "client": ("test", 1), "server": ("test", 80),
    }  # fmt: skip
    got = Got()

    async def receive() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            got.status = message["status"]
            got.headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
        else:
            got.body += message.get("body", b"")
            if leave_after_first_event and got.body:
                gone.set()

    await app(scope, receive, send)
    return got
