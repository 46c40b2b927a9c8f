"""The outermost layer: request ids, API keys and their limits, and cross-origin rules, before any route is
looked up. A key comes as Authorization: Bearer KEY or, as Anthropic's clients send it, as x-api-key: KEY.

Open without a key: exactly the paths in OPEN, spelled as they are there, and the trees that the app names.
Everything else needs one, unknown paths too. A POST counts for its key's limits from here to the last byte of
its answer; a cancel is let through.
"""

import re
import uuid
from collections.abc import Iterable
from math import ceil

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.api.errors import body_at
from ridgeline.base.errors import RequestError
from ridgeline.server.keys import Keys
from ridgeline.server.quota import RATE_HEADERS, Quota

OPEN = frozenset({"/health", "/ready", "/ping"})
_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_METHODS = b"GET, POST, DELETE, OPTIONS"


class Access:
    """ASGI layer around the app. origins: who may call from a browser ("*" for all); empty turns CORS off.
    open_trees: first segments of the paths that take no key."""

    def __init__(
        self, app: ASGIApp, *, keys: Keys, origins: Iterable[str] = (), open_trees: Iterable[str] = ()
    ) -> None:
        self._app = app
        self._keys = keys
        self._open_trees = frozenset(open_trees)
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex.encode()
        extra = [(b"x-request-id", request_id), (b"request-id", request_id), *self._cors(headers)]
        known = self._keys.caller(headers, request_id.decode())
        scope["caller"], quota = known or (None, None)
        scope["request_id"] = request_id.decode()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        if self._is_preflight(scope, headers):
            await send_with_headers({"type": "http.response.start", "status": 204})
            await send({"type": "http.response.body"})
        elif scope["caller"] is None and not self._is_open(scope["path"]):
            await _refuse(scope, _no_key(), send_with_headers)
        elif quota is not None and scope["method"] == "POST" and not scope["path"].endswith("/cancel"):
            await self._counted(quota, scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    async def _counted(self, quota: Quota, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *quota.headers()]
            await send(message)

        try:
            quota.enter()
        except RequestError as refusal:
            await _refuse(scope, refusal, send_with_limits)
            return
        try:
            await self._app(scope, receive, send_with_limits)
        finally:
            quota.leave()

    def _is_open(self, path: str) -> bool:
        return path in OPEN or path.removeprefix("/").partition("/")[0] in self._open_trees

    def _is_preflight(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        asks = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        return asks and self._allowed(headers)

    def _allowed(self, headers: dict[bytes, bytes]) -> bool:
        return b"origin" in headers and (b"*" in self._origins or headers[b"origin"] in self._origins)

    def _cors(self, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        if not self._origins or b"origin" not in headers:
            return []
        if not self._allowed(headers):
            return [(b"vary", b"Origin")]
        answer = [
            (b"access-control-allow-origin", headers[b"origin"]),
            (b"access-control-expose-headers", b", ".join((b"x-request-id", b"retry-after", *RATE_HEADERS))),
            (b"vary", b"Origin"),
        ]
        if b"access-control-request-method" in headers:
            wanted = headers.get(b"access-control-request-headers", b"authorization, content-type")
            answer += [
                (b"access-control-allow-methods", _METHODS),
                (b"access-control-allow-headers", wanted),
                (b"access-control-max-age", b"600"),
            ]
        return answer


def _no_key() -> RequestError:
    return RequestError("a valid API key is needed: send the header Authorization: Bearer KEY", status=401)


async def _refuse(scope: Scope, error: RequestError, send: Send) -> None:
    told = body_at(scope["path"], error)
    scope["error_code"] = told.error.code
    body = msgspec.json.encode(told)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(ceil(error.retry_after_s)).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
