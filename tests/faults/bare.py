"""The floor of what HTTP costs: an ASGI app under uvicorn that streams an event of the same size to each
client once a tick, and does nothing else. `python -m tests.faults.bare PORT_FILE TIMES TICK_S EVENT`."""

import asyncio
import contextlib
import socket
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn

from ridgeline.server.serve import run
from tests.faults.engine import FIRST, NUM_MARKS, NUM_TIMES, step_times

MARK = b"@@"  # in EVENT: where the character of a tick stands


class Ticks:
    """A tick every tick_s; whoever waits hears its number."""

    def __init__(self, tick_s: float, times_path: str) -> None:
        self.tick_s = tick_s
        self.number = 0
        self.times = step_times(times_path)
        self.next: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        due_s = time.monotonic()
        while True:
            due_s += self.tick_s
            await asyncio.sleep(due_s - time.monotonic())
            self.number += 1
            self.times[self.number % NUM_TIMES] = time.monotonic()
            waited, self.next = self.next, asyncio.get_running_loop().create_future()
            waited.set_result(self.number)


async def left(receive: Any) -> None:
    """Until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def main(port_file: str, times: str, tick_s: str, event: str) -> None:
    ticks = Ticks(float(tick_s), times)
    before, after = event.encode().split(MARK)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(left(receive))
        while not gone.done():  # or the streams of one round would go on beside those of the next
            mark = b"%c" % (FIRST + await ticks.next % NUM_MARKS)
            await send({"type": "http.response.body", "body": before + mark + after, "more_body": True})

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning", access_log=False))
        ticking = asyncio.create_task(ticks.run())
        Path(port_file).write_text(str(listener.getsockname()[1]))
        await server.serve(sockets=[listener])
        ticking.cancel()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run(main(*sys.argv[1:]))
