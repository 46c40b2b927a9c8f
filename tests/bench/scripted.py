"""A server that answers as a script says, and remembers when it wrote what: a load client's known truth."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PER_WORD, OVERHEAD = 1, 3  # its tokenizer: a token a word, and a template


def piece(data: bytes) -> bytes:
    """One piece of a chunked body; b"" ends it."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(**body: Any) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def text(words: str, finish: str | None = None, *, chat: bool = False) -> bytes:
    said = {"delta": {"content": words}} if chat else {"text": words}
    return event(choices=[{"index": 0, **said, "finish_reason": finish}])


@dataclass(frozen=True, slots=True)
class Act:
    """After delay_s, write data; None closes the connection."""

    delay_s: float
    data: bytes | None


@dataclass(slots=True)
class Call:
    """One request as the server saw it. wrote_s: when each Act was carried out."""

    body: dict[str, Any]
    came_s: float
    wrote_s: list[float] = field(default_factory=list)

    @property
    def num_prompt(self) -> int:
        said = self.body.get("prompt") or self.body["messages"][0]["content"]
        return OVERHEAD + PER_WORD * len(said.split())

    def usage(self, num_output: int) -> bytes:
        return event(choices=[], usage={"prompt_tokens": self.num_prompt, "completion_tokens": num_output})


Script = Callable[[int, Call], list[Act]]


def steady(first_s: float, gap_s: float, *, chat: bool = False) -> Script:
    """first_s to the first token, gap_s between tokens, a token a chunk."""

    def script(number: int, call: Call) -> list[Act]:
        num = call.body["max_tokens"]
        finish = [None] * (num - 1) + ["length"]
        acts = [Act(gap_s if i else first_s, piece(text(" a", finish[i], chat=chat))) for i in range(num)]
        return [Act(0.0, HEAD), *acts, Act(0.0, piece(call.usage(num) + b"data: [DONE]\n\n") + piece(b""))]

    return script


class Scripted:
    """url, and the calls so far; those of the client's probes come apart."""

    def __init__(self, script: Script) -> None:
        self.url = ""
        self.leave: Callable[[], None] = lambda: None  # takes no more connections
        self.calls: list[Call] = []
        self._probe = steady(0.0, 0.0)
        self._script = script
        self._num_probes = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /v1/models "):
                body = json.dumps({"data": [{"id": "scripted"}]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                return
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            call = Call(json.loads(await reader.readexactly(length)), perf_counter())
            if call.body["max_tokens"] == 1 and self._num_probes < 2:
                self._num_probes += 1
                await self._carry_out(self._probe(0, call), call, writer)
                return
            self.calls.append(call)
            await self._carry_out(self._script(len(self.calls) - 1, call), call, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _carry_out(self, acts: list[Act], call: Call, writer: asyncio.StreamWriter) -> None:
        for act in acts:
            if act.delay_s:
                await asyncio.sleep(act.delay_s)
            if act.data is None:
                writer.transport.abort()
                return
            call.wrote_s.append(perf_counter())
            writer.write(act.data)
            await writer.drain()


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Scripted]:
    """Serves in this event loop until the block ends."""
    here = Scripted(script)
    server = await asyncio.start_server(here.answer, "127.0.0.1", 0)
    here.leave = server.close
    here.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield here
    finally:
        server.close()
