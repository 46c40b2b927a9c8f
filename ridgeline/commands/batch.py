"""Batches from a file: each line is a request to one of the endpoints, each answer a line appended at once.

Knows OpenAI's batch format. A line that is broken or refused costs the others nothing.
"""

import asyncio
import json
import sys
import uuid
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ridgeline.api.answers import to_json
from ridgeline.api.embeddings import embeddings
from ridgeline.api.errors import as_request_error, body_at
from ridgeline.api.messages import Messages
from ridgeline.api.openai import OpenAI, Reply
from ridgeline.api.parse import parse
from ridgeline.api.responses import Responses
from ridgeline.api.score import score
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError, EngineDeadError, RequestError
from ridgeline.server.start import start

Endpoints = Mapping[str, Callable[[bytes], Coroutine[Any, Any, Reply]]]
AHEAD = 2  # requests in the engine for each place in its batch


class BatchLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One request. url: of an endpoint (`_endpoints`); body: as there, not streamed."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class BatchAnswer(msgspec.Struct, kw_only=True):
    """response: status_code, request_id and body, also of a refusal; null when the line itself is at fault.

    line: the number of a line without a readable custom_id.
    """

    id: str
    custom_id: str | None = None
    response: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    line: int | msgspec.UnsetType = msgspec.UNSET


def run_batch(source: Path, target: Path, config: EngineConfig) -> int:
    """Answer what `target` does not answer yet. Returns the exit code: 1 when the engine died on the way."""
    batch = Batch(source, target)
    if not batch.num_todo:
        print(f"run-batch: all requests are answered in {target}", file=sys.stderr)
        return 0

    async def run() -> None:
        async with start(config) as running:
            await batch.answer(running.api, AHEAD * config.max_num_seqs)

    try:
        asyncio.run(run())
    except EngineDeadError as error:
        print(f"run-batch: the engine ended: {error}; run the same command again to go on", file=sys.stderr)
        return 1
    return 0


class Batch:
    """The requests of `source` that `target` does not answer yet. Raises ConfigError for files that cannot be
    used.
    """

    def __init__(self, source: Path, target: Path) -> None:
        try:
            lines = source.read_bytes().splitlines()
            done = _answered(target)
        except OSError as error:
            raise ConfigError(f"cannot use {error.filename}: {error.strerror}") from None
        self._target = target
        self._todo = [
            (n, line) for n, line in enumerate(lines, 1) if line.strip() and _key(n, line) not in done
        ]
        self._num_done = 0
        self._seen: set[str] = set()

    @property
    def num_todo(self) -> int:
        """Lines that have no answer yet."""
        return len(self._todo)

    async def answer(self, api: OpenAI, num_places: int) -> None:
        """Answer all of them, at most `num_places` at a time. Raises EngineDeadError; what is written stays.
        """
        places = asyncio.Semaphore(num_places)
        endpoints = _endpoints(api)
        with self._target.open("ab") as out:
            try:
                async with asyncio.TaskGroup() as group:
                    for number, line in self._todo:
                        await places.acquire()
                        task = group.create_task(self._answer(endpoints, number, line, out))
                        task.add_done_callback(lambda _: places.release())
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None

    async def _answer(self, endpoints: Endpoints, number: int, line: bytes, out: BinaryIO) -> None:
        answer = await self._one(endpoints, number, line)
        out.write(to_json(answer) + b"\n")
        out.flush()
        self._show_progress()

    async def _one(self, endpoints: Endpoints, number: int, line: bytes) -> BatchAnswer:
        answer = BatchAnswer(id=f"batch_req_{uuid.uuid4().hex}")
        try:
            asked = parse(line, BatchLine)
            if asked.custom_id in self._seen:
                raise RequestError(
                    "another line has this custom_id", param="custom_id", code="duplicate_custom_id"
                )
        except RequestError as error:
            key = _key(number, line)
            answer.custom_id, answer.line = (key, msgspec.UNSET) if isinstance(key, str) else (None, number)
            answer.error = {"code": error.code, "message": f"line {number}: {error}", "param": error.param}
            return answer
        self._seen.add(asked.custom_id)
        answer.custom_id = asked.custom_id
        status, body = await _ask(endpoints, asked)
        answer.response = {"status_code": status, "request_id": uuid.uuid4().hex, "body": msgspec.Raw(body)}
        return answer

    def _show_progress(self) -> None:
        self._num_done += 1
        last, live = self._num_done == self.num_todo, sys.stderr.isatty()
        if live or last or self._num_done % 100 == 0:
            text = f"run-batch: {self._num_done} of {self.num_todo} requests"
            print(text, end="\r" if live and not last else "\n", file=sys.stderr, flush=True)


def _endpoints(api: OpenAI) -> Endpoints:
    """By the path under which the server has them."""
    messages, responses = Messages(api), Responses(api, background=False)
    return {
        "/v1/chat/completions": api.chat, "/v1/completions": api.completion,
        "/v1/embeddings": partial(embeddings, api), "/v1/score": partial(score, api),
        "/v1/messages": messages.create, "/v1/responses": responses.create,
    }  # fmt: skip


async def _ask(endpoints: Endpoints, asked: BatchLine) -> tuple[int, bytes]:
    """Status and body, as the server would answer."""
    try:
        if asked.method != "POST" or asked.url not in endpoints:
            raise RequestError(
                f"{asked.method} {asked.url:.100} is not served; use POST and one of {', '.join(endpoints)}",
                param="url",
                status=404,
            )
        reply = await endpoints[asked.url](bytes(asked.body))
        if not isinstance(reply, bytes):
            await reply.aclose()
            raise RequestError("stream: a batch has no streams", param="stream")
        return 200, reply
    except EngineDeadError:
        raise
    except Exception as error:
        refusal = as_request_error(error)
        return refusal.status, to_json(body_at(asked.url, refusal))


def _answered(target: Path) -> set[str | int]:
    """custom_ids (and numbers of unreadable lines) that have an answer; a half-written last line is cut off.
    """
    if not target.exists():
        return set()
    raw = target.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        with target.open("r+b") as file:
            file.truncate(len(whole))
    found: set[str | int] = set()
    for line in whole.splitlines():
        try:
            answer = json.loads(line)
            found.add(answer["line"] if answer["custom_id"] is None else answer["custom_id"])
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{target} holds a line that is no batch answer; give another output file"
            ) from None
    return found


def _key(number: int, line: bytes) -> str | int:
    """A line's custom_id, or its number when it has none."""
    try:
        value = json.loads(line)["custom_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return number
    return value if isinstance(value, str) else number
