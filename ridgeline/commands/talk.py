"""How a terminal command reaches a model: an engine of its own, or a server elsewhere. Both give parsed
events.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Protocol

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import RidgelineError

Event = Mapping[str, Any]


class Talk(Protocol):
    """Streams one request. Closing the iterator early cancels it. Raises RidgelineError for a refusal."""

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Event]: ...


class RemoteTalk:
    """A server at `url`, with or without /v1 at its end."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Event]:
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        try:
            request = urllib.request.Request(self._url + path, data, self._headers)
            with urllib.request.urlopen(request) as answer:
                yield from filter(None, map(_event, answer))
        except urllib.error.HTTPError as error:
            raise RidgelineError(_message(error)) from None
        except (OSError, ValueError) as error:
            raise RidgelineError(f"cannot reach {self._url}: {getattr(error, 'reason', error)}") from None


class LocalTalk:
    """An engine of this command's own; its event loop runs only while an answer is awaited."""

    def __init__(self, runner: asyncio.Runner, api: Any) -> None:
        self._runner = runner
        self._endpoints = {"/v1/chat/completions": api.chat, "/v1/completions": api.completion}

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Event]:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        events = self._runner.run(self._endpoints[path](json.dumps(asked).encode()))
        try:
            each = aiter(events)
            while (raw := self._runner.run(_next(each))) is not None:
                yield from filter(None, map(_event, raw.splitlines()))
        finally:
            self._runner.run(events.aclose())


@contextmanager
def local_talk(config: EngineConfig) -> Iterator[LocalTalk]:
    """Start an engine and end it with the block."""
    from ridgeline.server.start import start

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        running = runner.run(stack.enter_async_context(start(config)))
        try:
            yield LocalTalk(runner, running.api)
        finally:
            runner.run(stack.aclose())


async def _next(events: Any) -> bytes | None:
    return await anext(events, None)


def _event(line: bytes) -> Event | None:
    """The event of a line; None for blank lines and the end. Raises RidgelineError for an error event."""
    if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
        return None
    event: Event = json.loads(line[6:])
    if "error" in event:
        raise RidgelineError(event["error"]["message"])
    return event


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answers {error.code} {error.reason}"
