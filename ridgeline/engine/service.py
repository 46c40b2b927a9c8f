"""The loop behind a socket: messages in between steps, the news of a step out in one frame for each client.

Owns who asked for what. A message that is broken, a request that is refused and a client that vanishes cost
nobody else anything. Knows no model and no text.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from ridgeline.base.clock import Clock
from ridgeline.base.errors import RequestError
from ridgeline.engine.adapters import Adapters, need_adapters, seated
from ridgeline.engine.compiling import Compiling
from ridgeline.engine.wire import Parcel, new_request
from ridgeline.frontend.protocol import (
    Abort,
    Answer,
    Ask,
    LoadAdapter,
    Refused,
    Submit,
    ToClient,
    ToEngine,
    UnloadAdapter,
)
from ridgeline.runner.grammar import Grammars
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.request import NewRequest

IDLE_MS = 500  # how soon an idle engine notices a signal
BUSY_MS = 2  # and a grammar that is compiled, or an adapter that is read
_log = logging.getLogger("ridgeline.engine")


@dataclass(slots=True, kw_only=True)
class _Live:
    """A request that has not ended: whose it is, its choices that still run, its adapter's slot, and the
    route of its tokens."""

    client: bytes
    num_open: int
    slot: int
    route: int | None


class Service:
    """Answers clients on a ROUTER socket until it is told to stop.

    info: the answer to "info". The socket must be bound, with ROUTER_MANDATORY set. grammars: the executor's.
    adapters: the engine's, None where it has no room for any.
    """

    def __init__(self, loop: Loop, socket: zmq.Socket[bytes], info: Mapping[str, Any], clock: Clock,
                 grammars: Grammars | None = None, adapters: Adapters | None = None) -> None:
        self._loop = loop
        self._socket = socket
        self._info = dict(info)
        self._clock = clock
        self._started_s = clock.now()
        self._live: dict[str, _Live] = {}
        self._compiling = Compiling(grammars)
        self._adapters = adapters
        self._drains: list[tuple[bytes, str]] = []
        self._draining = False
        self._stopped = False
        self._num_malformed = 0
        self._decode = msgspec.msgpack.Decoder(ToEngine | list[ToEngine]).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def stop(self) -> None:
        """Leave `run` soon; safe in a signal handler."""
        self._stopped = True

    def run(self) -> None:
        """Serve until a client asks for shutdown or `stop` is called; what still runs then is aborted.

        Raises what breaks the loop itself: the engine cannot go on after that.
        """
        while not self._stopped:
            busy = self._compiling or self._adapters
            self._receive(0 if self._loop.has_work() else BUSY_MS if busy else IDLE_MS)
            self._add_compiled()
            self._tell_loaded()
            if self._loop.has_work():
                self._step()
            elif self._drains and not self._compiling:
                for client, ask in self._drains:
                    self._send(client, [Answer(id=ask, info={})])
                self._drains.clear()
        self._compiling.close()
        for request in list(self._live):
            self._loop.abort(request)
        while self._loop.has_work():
            self._step()

    # ---- in

    def _receive(self, wait_ms: int) -> None:
        if not self._socket.poll(wait_ms):
            return
        while not self._stopped:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            client, frame = parts[0], parts[-1]
            try:
                decoded = self._decode(frame)
            except (msgspec.DecodeError, RecursionError) as error:
                self._malformed(client, frame, error)
                continue
            for message in decoded if isinstance(decoded, list) else [decoded]:
                self._take(client, message)

    def _malformed(self, client: bytes, frame: bytes, error: Exception) -> None:
        """A frame that is no message; its sender hears of it when it at least has an id."""
        self._num_malformed += 1
        _log.warning("a frame of %d bytes that is no message was dropped: %s", len(frame), error)
        try:
            request = msgspec.msgpack.decode(frame, type=dict[str, Any]).get("id")
        except (msgspec.DecodeError, RecursionError):
            return
        if isinstance(request, str):
            self._refuse(client, request, RequestError(f"the message is malformed: {error}"))

    def _take(self, client: bytes, message: ToEngine) -> None:
        if isinstance(message, Submit):
            self._submit(client, message)
        elif isinstance(message, Abort):
            live = self._live.get(message.id)
            if live is not None and live.client == client:
                self._loop.abort(message.id, message.choice, message.keep_tokens)
            self._compiling.drop(client, message.id)
        elif isinstance(message, Ask):
            self._ask(client, message)
        else:
            self._change_adapters(client, message)

    def _submit(self, client: bytes, submit: Submit) -> None:
        try:
            if self._draining:
                raise RequestError("the engine is shutting down", code="shutting_down", status=503)
            if submit.id in self._live or submit.id in self._compiling:
                raise RequestError(
                    f"a request with the id {submit.id!r} is running", param="id", code="duplicate"
                )
            request = new_request(submit, self._clock.now())
            if submit.sampling.grammar is None:
                self._add(client, request, submit)
            else:
                self._compiling.add(client, request, submit)
        except Exception as error:
            self._fail(client, submit.id, error)

    def _add(self, client: bytes, request: NewRequest, submit: Submit) -> None:
        request = seated(self._adapters, request, submit.adapter)
        self._loop.add(request)
        self._live[request.id] = _Live(client=client, num_open=request.params.n, slot=request.adapter,
                                       route=submit.route)
        if self._adapters is not None:
            self._adapters.joined(request.adapter)

    def _add_compiled(self) -> None:
        """Those whose grammar is compiled by now."""
        for compiled in self._compiling.take() if self._compiling else ():
            try:
                if compiled.error is not None:
                    raise compiled.error
                self._add(compiled.client, compiled.request, compiled.submit)
            except Exception as error:
                self._fail(compiled.client, compiled.request.id, error)

    def _fail(self, client: bytes, request_id: str, error: Exception) -> None:
        """A fault of ours in one request must not take the others along."""
        if not isinstance(error, RequestError):
            _log.error("request %s failed at the door", request_id, exc_info=error)
            error = RequestError(f"{type(error).__name__}: {error}", status=500)
        self._refuse(client, request_id, error)

    def _change_adapters(self, client: bytes, message: LoadAdapter | UnloadAdapter) -> None:
        try:
            adapters = need_adapters(self._adapters, to_change=True)
            if isinstance(message, LoadAdapter):
                key = client, message.id
                adapters.load(key, message.name, message.path, replaces=message.replace)
            else:
                adapters.unload(message.name)
                self._send(client, [Answer(id=message.id, info={})])
        except Exception as error:
            self._fail(client, message.id, error)

    def _tell_loaded(self) -> None:
        """Whoever waits for an adapter hears that it is there, or why it is not."""
        for loaded in self._adapters.take() if self._adapters else ():
            client, request = loaded.key
            if loaded.error is None:
                self._send(client, [Answer(id=request, info=dict(loaded.info))])
            else:
                self._fail(client, request, loaded.error)

    def _ask(self, client: bytes, ask: Ask) -> None:
        if ask.what == "info":
            adapters = [] if self._adapters is None else self._adapters.infos
            self._send(client, [Answer(id=ask.id, info=self._info | {"adapters": adapters})])
        elif ask.what == "stats":
            self._send(client, [Answer(id=ask.id, info=self.stats())])
        elif ask.what == "drain":
            self._draining = True
            self._drains.append((client, ask.id))
        elif ask.what == "shutdown":
            self._send(client, [Answer(id=ask.id, info={})])
            self._stopped = True
        else:
            self._refuse(
                client,
                ask.id,
                RequestError(f"{ask.what!r} is not a question: ask info, stats, drain or shutdown"),
            )

    def stats(self) -> dict[str, Any]:
        """Gauges and counters of the loop and of this socket."""
        clients = {live.client for live in self._live.values()}
        return {
            **self._loop.stats(),
            "has_work": self._loop.has_work(),
            "num_malformed": self._num_malformed,
            "num_clients": len(clients),
            "uptime_s": self._clock.now() - self._started_s,
        }

    # ---- out

    def _step(self) -> None:
        by_client: dict[bytes, Parcel] = defaultdict(Parcel)
        for output in self._loop.step():
            live = self._live[output.id]
            by_client[live.client].add(output, live.route)
            if output.finish is not None:
                live.num_open -= 1
                if not live.num_open:
                    del self._live[output.id]
                    if self._adapters is not None:
                        self._adapters.left(live.slot)
        for client, parcel in by_client.items():
            self._send(client, parcel.messages)

    def _refuse(self, client: bytes, request: str, error: RequestError) -> None:
        refused = Refused(
            id=request, message=str(error), param=error.param, code=error.code, status=error.status
        )
        self._send(client, [refused])

    def _send(self, client: bytes, messages: Sequence[ToClient]) -> None:
        try:
            self._socket.send_multipart([client, self._encode(messages)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._lost(client)

    def _lost(self, client: bytes) -> None:
        """The client is gone: nobody reads its answers any more."""
        self._compiling.drop(client)
        orphans = [request for request, live in self._live.items() if live.client == client]
        if orphans:
            _log.warning("a client vanished; %d of its requests are aborted", len(orphans))
        for request in orphans:
            self._loop.abort(request)
