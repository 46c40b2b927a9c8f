"""The engine process: `python -m ridgeline.engine --config-json ... --socket ipc://...`.

Owns the life of the process: the socket is bound before the model loads, so that clients may ask at once; it
ends on request, on SIGTERM, when the model cannot be loaded, and when the process that started it is gone.

The answer to "info" is `build.Engine.info`, with `imports_s` and `ready_s` in its startup: seconds from exec
until here, and until it serves; that to "stats" is `service.Service.stats`.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import zmq

from ridgeline.base.clock import WallClock, since_exec_s
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import RidgelineError
from ridgeline.base.logs import FORMATS, LogStyle, configure
from ridgeline.engine.build import Engine, build_engine
from ridgeline.engine.service import Service
from ridgeline.frontend.protocol import Ask, Refused, ToEngine

Build = Callable[[EngineConfig], Engine]
SERVING: Build = partial(build_engine, serving=True)
PARENT_POLL_S = 0.5
TELL_S = 1.0  # how long a failed start waits for somebody to tell
_log = logging.getLogger("ridgeline.engine")


def main(argv: Sequence[str] | None = None, build: Build = SERVING) -> int:
    """Exit code 0 after a shutdown, 2 for a mistake of the user's, 1 for one of ours. build: the engine."""
    imports_s = since_exec_s()
    parser = argparse.ArgumentParser(prog="python -m ridgeline.engine")
    parser.add_argument("--config-json", required=True, help="an EngineConfig as JSON")
    parser.add_argument("--socket", required=True, help="the address to bind, such as ipc:///run/engine.sock")
    parser.add_argument(
        "--parent-pid", type=int, help="end, and remove the socket's folder, when this process is gone"
    )
    parser.add_argument("--log-format", choices=FORMATS, default="text")
    parser.add_argument("--log-prompts", action="store_true", help="what exceptions say, too")
    args = parser.parse_args(argv)
    configure(LogStyle(format=args.log_format, prompts=args.log_prompts))
    config = msgspec.json.decode(args.config_json, type=EngineConfig)
    if args.parent_pid is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the parent decides
        threading.Thread(target=_outlive_nobody, args=(args.parent_pid, args.socket), daemon=True).start()
    context = zmq.Context()
    socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, 500)
    socket.bind(args.socket)
    try:
        return _serve(config, socket, build, imports_s)
    finally:
        socket.close()
        context.term()
        _remove_file(args.socket, folder=args.parent_pid is not None)


def _serve(config: EngineConfig, socket: "zmq.Socket[bytes]", build: Build, imports_s: float) -> int:
    try:
        engine = build(config)
    except Exception as error:
        user_error = isinstance(error, RidgelineError)
        if not user_error:
            _log.exception("the engine could not start")
        _tell_failure(socket, str(error) if user_error else f"{type(error).__name__}: {error}")
        return 2 if user_error else 1
    startup = engine.info["startup"] | {"imports_s": imports_s, "ready_s": since_exec_s()}
    info = {**engine.info, "startup": startup}
    service = Service(engine.loop, socket, info, WallClock(), engine.grammars, engine.adapters)
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    try:
        service.run()
    finally:
        engine.close()
    return 0


def _tell_failure(socket: "zmq.Socket[bytes]", message: str) -> None:
    """Answer whoever has asked with the reason; without anybody, it goes to stderr."""
    told = False
    clock = WallClock()
    deadline_s = clock.now() + TELL_S
    decoder = msgspec.msgpack.Decoder(ToEngine)
    while not told and socket.poll(max(0, int((deadline_s - clock.now()) * 1000))):
        client, frame = socket.recv_multipart()
        try:
            ask = decoder.decode(frame)
        except msgspec.DecodeError:
            continue
        if isinstance(ask, Ask):
            refused = Refused(id=ask.id, message=message, code="start_failed", status=500)
            socket.send_multipart([client, msgspec.msgpack.encode([refused])])
            told = True
    if not told:
        print(f"ridgeline: error: {message}", file=sys.stderr)


def _outlive_nobody(parent_pid: int, address: str) -> None:
    """End this process at once when its parent is gone, even in the middle of a step."""
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_S)
    _remove_file(address, folder=True)
    os._exit(1)


def _remove_file(address: str, *, folder: bool) -> None:
    """The socket's file and, when it was made for this engine, its folder."""
    if not address.startswith("ipc://"):
        return
    path = Path(address.removeprefix("ipc://"))
    path.unlink(missing_ok=True)
    if folder:
        with contextlib.suppress(OSError):
            path.parent.rmdir()
