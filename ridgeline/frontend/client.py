"""The asyncio client of an engine process: requests out, their news in, its death told to all who wait.

Owns the engine's process when it started it, and the private folder of its socket. Torch-free, without text.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from ridgeline.base.clock import Clock, WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError, EngineDeadError, RequestError
from ridgeline.base.logs import TEXT, LogStyle
from ridgeline.frontend.inbox import AtOnce
from ridgeline.frontend.inboxes import Inboxes
from ridgeline.frontend.params import to_wire
from ridgeline.frontend.protocol import (
    Abort,
    Answer,
    Ask,
    LoadAdapter,
    News,
    Refused,
    Submit,
    ToClient,
    ToEngine,
    Tokens,
    UnloadAdapter,
)
from ridgeline.spec.sampling import SamplingParams

_LONGEST_SOCKET_PATH = 104  # bytes; the system keeps 108 with the end, some others 104
STALL_S = 120.0
ENGINE = "ridgeline.engine"
WATCH_S = 1.0


def _socket_folder() -> str:
    """A private folder for the engine's socket: in the usual place, unless that is too long for a socket."""
    folder = tempfile.mkdtemp(prefix="ridgeline-")
    if len(os.fsencode(folder)) + len("/engine.sock") <= _LONGEST_SOCKET_PATH:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="ridgeline-", dir="/tmp")


class EngineClient:
    """One engine, used from one event loop. Make it with `start` or `connect`, end it with `close`.

    info: what the engine says of itself. stall_s: how long work may wait without a finished step until the
    engine counts as stuck; then, as when its process dies, everything that waits gets EngineDeadError.
    """

    num_restarts = 0  # a dead one stays dead; the keeper has more than one

    def __init__(self, address: str, *, stall_s: float = STALL_S, clock: Clock | None = None) -> None:
        self.info: Mapping[str, Any] = {}
        self._clock = clock or WallClock()
        self._stall_s = stall_s
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in ((zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.LINGER, 0)):
            self._socket.set(option, value)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        self._at_hand: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)  # the same one, which never waits
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[ToClient]).decode
        self._inboxes = Inboxes(self.abort)
        self._asks: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._dead: str | None = None
        self._gone = asyncio.Event()
        self._closing = False
        self._num_steps = -1
        self._moved_s = self._clock.now()
        self._process: asyncio.subprocess.Process | None = None
        self._folder: str | None = None
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch_socket())]

    # ---- life

    @classmethod
    async def start(
        cls, config: EngineConfig, *, stall_s: float = STALL_S, logs: LogStyle = TEXT, module: str = ENGINE
    ) -> "EngineClient":
        """Start an engine process, which logs in the style `logs`, and wait until it serves. module: what
        runs as the engine.

        Raises ConfigError with the engine's own words when it cannot start. The process ends with this one,
        however this one ends.
        """
        folder = _socket_folder()
        address = f"ipc://{folder}/engine.sock"
        settings = msgspec.json.encode(config).decode()
        command = ["-m", module, "--config-json", settings, "--socket", address]
        command += ["--parent-pid", str(os.getpid()), *logs.words()]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=asyncio.subprocess.DEVNULL
        )
        client = cls(address, stall_s=stall_s)
        client._process, client._folder = process, folder
        client._tasks.append(asyncio.create_task(client._watch_process(process)))
        return await client._ready()

    @classmethod
    async def connect(cls, address: str, *, stall_s: float = STALL_S) -> "EngineClient":
        """A client of an engine that somebody else started; waits until it serves."""
        return await cls(address, stall_s=stall_s)._ready()

    async def _ready(self) -> "EngineClient":
        try:
            self.info = await self.ask("info")
        except RequestError as error:
            await self.close(timeout_s=0.0)
            raise ConfigError(str(error)) from None
        except BaseException:
            await self.close(timeout_s=0.0)
            raise
        self._tasks.append(asyncio.create_task(self._watch_progress()))
        return self

    async def close(self, *, timeout_s: float = 5.0) -> None:
        """End: what still waits gets EngineDeadError; the engine, when this client started it, ends too.

        timeout_s: how long the engine may take before it is killed.
        """
        self._closing = True
        if self._process is not None:
            await self._end_process(self._process, timeout_s)
        self._fail("the engine was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._socket.closed:
            self._socket.disable_monitor()
            self._context.destroy(linger=0)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _end_process(self, process: asyncio.subprocess.Process, timeout_s: float) -> None:
        if process.returncode is None and self._dead is None:
            self._send(Ask(id=uuid.uuid4().hex, what="shutdown"))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), timeout_s)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    @property
    def dead(self) -> str | None:
        """Why the engine cannot be used any more, or None."""
        return self._dead

    async def gone(self) -> str:
        """Waits until it cannot be used any more; why."""
        await self._gone.wait()
        assert self._dead is not None
        return self._dead

    # ---- requests

    async def submit(
        self, request_id: str, prompt: Sequence[int], params: SamplingParams, *, priority: int = 0,
        cache_salt: str = "", tenant: str = "", adapter: str = "", arrived_s: float | None = None,
        predicted_output: int | None = None, at_once: AtOnce | None = None,
    ) -> AsyncGenerator[News, None]:  # fmt: skip
        """News of all choices until each is closed. Closing the generator before that aborts the request.
        arrived_s: when somebody first asked for it, by the machine's monotonic clock. at_once: see Inbox;
        what it raises, the generator raises.

        Raises RequestError when the engine refuses it, or when its reader is so far behind that it was
        aborted; EngineDeadError when the engine is gone or stuck.
        """
        self._check_alive()
        open_choices = set(range(max(1, params.n)))
        inbox = self._inboxes.open(request_id, len(open_choices), at_once)
        try:
            self._send(
                Submit(
                    id=request_id, prompt=list(prompt), sampling=to_wire(params), priority=priority,
                    cache_salt=cache_salt, tenant=tenant, adapter=adapter, arrived_s=arrived_s,
                    tokenised_s=self._clock.now(), predicted_output=predicted_output,
                    route=inbox.routes[0],
                )
            )  # fmt: skip
            while open_choices:
                for item in await inbox.take():
                    if isinstance(item, Exception):
                        open_choices.clear()
                        raise item
                    if item.finish is not None:
                        open_choices.discard(item.choice)
                    yield item
        finally:
            self._inboxes.close(inbox)
            if open_choices and self._dead is None:
                self._send(Abort(id=request_id))

    def abort(self, request_id: str, choice: int | None = None, keep_tokens: int | None = None) -> None:
        """End a request or one of its choices; its last news still comes. Unknown ids pass.

        keep_tokens: output tokens that count, when a stop string was hit.
        """
        if self._dead is None:
            self._send(Abort(id=request_id, choice=choice, keep_tokens=keep_tokens))

    async def ask(self, what: str) -> Mapping[str, Any]:
        """The engine's answer to "info", "stats", "drain" or "shutdown". It comes between two steps."""
        return await self._answer(Ask(id=uuid.uuid4().hex, what=what))

    async def load_adapter(self, name: str, path: str, *, replace: bool) -> Mapping[str, Any]:
        """What the engine says of an adapter that it has loaded; replace: also where the name is taken.
        Raises RequestError."""
        return await self._answer(LoadAdapter(id=uuid.uuid4().hex, name=name, path=path, replace=replace))

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; its requests go on to their ends. Raises RequestError."""
        await self._answer(UnloadAdapter(id=uuid.uuid4().hex, name=name))

    async def _answer(self, message: Ask | LoadAdapter | UnloadAdapter) -> Mapping[str, Any]:
        self._check_alive()
        future = self._asks[message.id] = asyncio.get_running_loop().create_future()
        try:
            self._send(message)
            return await future
        finally:
            del self._asks[message.id]

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)

    def _send(self, message: ToEngine) -> None:
        # Without a high-water mark this never waits, so the future is done and only carries a failure.
        self._socket.send(self._encode(message), zmq.DONTWAIT)

    # ---- what comes back

    async def _receive(self) -> None:
        try:
            while True:
                frames = [await self._socket.recv(), *self._waiting()]
                now_s = self._clock.now()
                steps = [self._news(self._decode(frame)) for frame in frames]
                if any(steps):
                    self._moved_s = now_s
                await self._inboxes.take(steps, now_s)
        except Exception as error:  # nobody would hear anything any more
            self._fail(f"what the engine sends cannot be read: {type(error).__name__}: {error}")

    def _waiting(self) -> Iterator[bytes]:
        """Frames that are here already."""
        with contextlib.suppress(zmq.Again):
            while True:
                yield self._at_hand.recv(zmq.DONTWAIT)

    def _news(self, messages: Sequence[ToClient]) -> list[News | Tokens]:
        """The news among messages; what else there is, is told."""
        news: list[News | Tokens] = []
        for message in messages:
            if isinstance(message, News | Tokens):
                news.append(message)
            else:
                self._reply(message)
        return news

    def _reply(self, message: Answer | Refused) -> None:
        ask = self._asks.get(message.id)
        if isinstance(message, Refused):
            self._inboxes.fail(message.id, _refusal(message))
        if ask is None or ask.done():
            return
        if isinstance(message, Answer):
            ask.set_result(message.info)
        else:
            ask.set_exception(_refusal(message))

    # ---- its death

    def _fail(self, reason: str) -> None:
        """From now on the engine is dead to everybody."""
        if self._dead is not None:
            return
        self._dead = reason
        self._gone.set()
        self._inboxes.fail_all(EngineDeadError(reason))
        for future in self._asks.values():
            if not future.done():
                future.set_exception(EngineDeadError(reason))

    async def _watch_process(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not self._closing:
            await asyncio.sleep(0.05)  # its last words may still be on the way
            self._fail(f"the engine process ended: {_how(code)}")

    async def _watch_socket(self) -> None:
        """The other end of the socket went away: the engine has died, or its start failed."""
        await self._monitor.recv_multipart()
        if not self._closing and self._process is None:
            self._fail("the connection to the engine was lost")

    async def _watch_progress(self) -> None:
        """Ask for the count of steps while something waits; a count that stands still is a stuck engine."""
        while self._dead is None:
            await asyncio.sleep(min(WATCH_S, self._stall_s / 4))
            if not self._inboxes:
                self._moved_s = self._clock.now()
                continue
            with contextlib.suppress(TimeoutError, EngineDeadError):
                stats = await asyncio.wait_for(self.ask("stats"), self._stall_s / 4)
                if stats["num_steps"] != self._num_steps:
                    self._num_steps, self._moved_s = stats["num_steps"], self._clock.now()
            still_s = self._clock.now() - self._moved_s
            if self._inboxes and still_s > self._stall_s:
                self._fail(f"no step has finished for {still_s:.0f} s although work is waiting")
                if self._process is not None:
                    self._process.kill()


def _refusal(message: Refused) -> RequestError:
    return RequestError(message.message, param=message.param, code=message.code, status=message.status)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
