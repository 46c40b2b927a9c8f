"""A log record for each request: who asked for what, how it ended, its seconds and its tokens.

No part of a request stands in it but its method, the route that it matched and its id; its body only if the
operator said so. Probes that went well are left out.
"""

import logging
from collections.abc import Collection
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.account.caller import Caller, Use
from ridgeline.base.clock import Clock, WallClock
from ridgeline.base.logs import said

_LOG = logging.getLogger("ridgeline.request")
GONE, FAILED = 499, 500


class Journal:
    """ASGI layer around all others. routes: paths that may be written as they are. quiet: those of probes.
    prompts: bodies are written too.

    Reads from the scope what lies deeper has put there: "caller", "request_id", "route", "error_code"; puts
    there "send", past all layers, for the parts of a stream: only an answer's start is any layer's business.
    """

    def __init__(
        self, app: ASGIApp, *, routes: Collection[str], quiet: Collection[str], prompts: bool = False,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._app = app
        self._routes, self._quiet = frozenset(routes), frozenset(quiet)
        self._prompts = prompts
        self._clock = clock or WallClock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, status, body = self._clock.now(), GONE, bytearray()
        scope["send"] = send

        async def noted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def noted_receive() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        try:
            await self._app(scope, noted_receive if self._prompts else receive, noted_send)
        except Exception:
            status = FAILED
            raise
        finally:
            if status >= 400 or scope["path"] not in self._quiet:
                self._write(scope, status, self._clock.now() - began_s, body)

    def _write(self, scope: Scope, status: int, seconds: float, body: bytearray) -> None:
        caller: Caller | None = scope.get("caller")
        use = Use() if caller is None else caller.use
        route = getattr(scope.get("route"), "path", scope["path"] if scope["path"] in self._routes else None)
        fields: dict[str, Any] = {
            "request_id": scope.get("request_id"), "method": scope["method"], "route": route,
            "status": status, "seconds": round(seconds, 6), "tokens_in": use.num_prompt,
            "tokens_out": use.num_output, "tenant": (caller and caller.tenant) or None,
            "finish": ",".join(dict.fromkeys(use.finished)) or None, "error": scope.get("error_code"),
            "body": body.decode("utf-8", "replace") if self._prompts else None,
        }  # fmt: skip
        _LOG.log(logging.ERROR if status >= 500 else logging.INFO, "request", extra=said(fields))
