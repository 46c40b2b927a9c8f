"""Many clients at little cost, on plain sockets: those who read to the end, leave, or stop reading."""

import asyncio
import json
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Got:
    """first_s, last_s: from the connection's opening to the first event, and to the end."""

    status: int
    body: bytes
    first_s: float
    last_s: float

    @property
    def num_tokens(self) -> int:
        """Of a completion by `engine`, whose tokens are a character each; an event may bring several."""
        return sum(map(len, re.findall(rb'"text":"([0-Z]*)"', self.body)))


def request_bytes(path: str, body: bytes, *, method: str = "POST") -> bytes:
    return (b"%b %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (method.encode(), path.encode(), len(body), body))


def completion(max_tokens: int, **fields: Any) -> bytes:
    return json.dumps({"prompt": [40, 41, 42], "max_tokens": max_tokens, "ignore_eos": True, "stream": True,
                       "temperature": 0, **fields}).encode()


async def ask(port: int, request: bytes, *, leave_after: int | None = None, timeout_s: float = 120) -> Got:
    """One exchange. leave_after: bytes of the answer after which the client resets the connection."""
    began, first_s = time.monotonic(), None
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            answer = bytearray()
            while part := await reader.read(leave_after or 1 << 16):
                answer += part
                if first_s is None and b"data: " in answer:
                    first_s = time.monotonic() - began
                if leave_after is not None and len(answer) >= leave_after:
                    writer.transport.abort()
                    break
        finally:
            writer.close()
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    last_s = time.monotonic() - began
    return Got(status=int(head.split(b" ", 2)[1]) if head else 0, body=body, first_s=first_s or last_s,
               last_s=last_s)


def deaf(port: int, request: bytes) -> socket.socket:
    """A client that asks, and reads nothing; its own buffer is as small as can be."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    sock.sendall(request)
    return sock


def held_bytes(pid: int) -> int:
    """Anonymous memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


def num_open(pid: int) -> int:
    """Files, sockets and pipes that a process holds open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
