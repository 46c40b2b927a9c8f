"""The outermost layer: request ids, API keys and cross-origin rules, before any route is looked up. A key
comes as Authorization: Bearer KEY or, as Anthropic's clients send it, as x-api-key: KEY.

Open without a key: exactly the paths in OPEN, spelled as they are there, and the trees that the app names.
Everything else needs one, unknown paths too.
"""

import hashlib
import hmac
import re
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.api.caller import Caller
from ridgeline.api.errors import body_at
from ridgeline.base.errors import ConfigError, RequestError

OPEN = frozenset({"/health", "/ready", "/ping"})
_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_PRIORITY = re.compile("-?[0-9]{1,9}")
_METHODS = b"GET, POST, DELETE, OPTIONS"


class Keys:
    """API keys, kept as digests: some keys, or each with its priority or None. No keys means that every
    caller is let in."""

    def __init__(self, keys: Iterable[str] | Mapping[str, int | None] = ()) -> None:
        given = keys if isinstance(keys, Mapping) else dict.fromkeys(keys)
        self._keys = [(_digest(key.encode()), priority) for key, priority in given.items()]

    def caller(self, headers: Mapping[bytes, bytes], request_id: str) -> Caller | None:
        """Who holds the key of the Authorization or the x-api-key header, or None; the time taken tells
        nothing."""
        trace = headers.get(b"traceparent", b"").decode("latin-1")
        if not self._keys:
            return Caller(request_id=request_id, traceparent=trace)
        written = headers.get(b"authorization") or b"Bearer " + headers.get(b"x-api-key", b"")
        scheme, _, token = written.partition(b" ")
        given = _digest(token.strip())
        found = [key for key in self._keys if hmac.compare_digest(given, key[0])]
        if scheme.lower() != b"bearer" or not found:
            return None
        digest, priority = found[0]
        tenant = digest.hex()[:16]
        return Caller(request_id=request_id, tenant=tenant, priority=priority, traceparent=trace)


def read_keys(path: Path) -> dict[str, int | None]:
    """API keys from a file, with the priority of each or None: a line holds a key and may hold a whole number
    after it; # begins a comment. ConfigError names the line, and shows no key."""
    keys: dict[str, int | None] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the API keys cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or (len(words) == 2 and not _PRIORITY.fullmatch(words[1])) or words[0] in keys:
            raise ConfigError(
                f"{path}, line {number}: expected a key, there once, and at most its priority after "
                "it, a whole number of up to 9 digits (lower is sooner)"
            )
        keys[words[0]] = int(words[1]) if len(words) == 2 else None
    return keys


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
        scope["caller"] = self._keys.caller(headers, request_id.decode())

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        if self._is_preflight(scope, headers):
            await send_with_headers({"type": "http.response.start", "status": 204})
            await send({"type": "http.response.body"})
        elif scope["caller"] is None and not self._is_open(scope["path"]):
            await _refuse(scope["path"], send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

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
            (b"access-control-expose-headers", b"x-request-id"),
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


async def _refuse(path: str, send: Send) -> None:
    error = RequestError("a valid API key is needed: send the header Authorization: Bearer KEY", status=401)
    body = msgspec.json.encode(body_at(path, error))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
