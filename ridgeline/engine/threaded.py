"""A loop in a thread of its own: requests in from any thread, their news out to a function each."""

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable

from ridgeline.base.errors import EngineDeadError
from ridgeline.engine.wire import news_of
from ridgeline.frontend.protocol import News
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.request import NewRequest

Sink = Callable[[list[News] | Exception], None]
_log = logging.getLogger("ridgeline.engine")


class LoopThread:
    """Steps the loop while it has work and sleeps else.

    A sink is called in this thread with the news of a step, or once with why there will be none: RequestError
    when the request is refused, EngineDeadError when the loop broke or was closed. One that raises
    loses its request.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._sinks: dict[str, Sink] = {}
        self._open: dict[str, int] = {}
        self._dead: str | None = None
        self._thread = threading.Thread(target=self._run, name="ridgeline-loop", daemon=True)
        self._thread.start()

    def submit(self, request: NewRequest, sink: Sink) -> None:
        """Start a request."""
        if self._dead is not None:
            sink(EngineDeadError(self._dead))
            return
        self._commands.put(lambda: self._add(request, sink))

    def abort(self, request_id: str, choice: int | None = None, keep_tokens: int | None = None) -> None:
        """End a request or a choice of it; its last news still comes. Unknown ids pass."""
        self._commands.put(lambda: self._loop.abort(request_id, choice, keep_tokens))

    def close(self) -> None:
        """Stop after the step in flight; what still runs gets EngineDeadError."""
        self._commands.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_command():
                if self._loop.has_work():
                    self._step()
            self._fail("the engine was closed")
        except Exception as error:
            _log.exception("the loop broke")
            self._fail(f"the engine broke: {type(error).__name__}: {error}")
        while (command := self._commands.get()) is not None:  # whoever comes late hears of it
            command()

    def _take_command(self) -> bool:
        """Run what was asked since the last step; wait when there is nothing else to do. False to stop."""
        while not self._commands.empty() or not self._loop.has_work():
            command = self._commands.get()
            if command is None:
                self._commands.put(None)
                return False
            command()
        return True

    def _add(self, request: NewRequest, sink: Sink) -> None:
        if self._dead is not None:
            sink(EngineDeadError(self._dead))
            return
        try:
            self._loop.add(request)
        except Exception as error:
            sink(error)
            return
        self._sinks[request.id], self._open[request.id] = sink, request.params.n

    def _step(self) -> None:
        by_request: dict[str, list[News]] = defaultdict(list)
        for output in self._loop.step():
            by_request[output.id].append(news_of(output))
        for name, news in by_request.items():
            sink = self._sinks[name]
            self._open[name] -= sum(one.finish is not None for one in news)
            if not self._open[name]:
                del self._sinks[name], self._open[name]
            self._tell(name, sink, news)

    def _fail(self, reason: str) -> None:
        self._dead = reason
        for name, sink in self._sinks.items():
            self._tell(name, sink, EngineDeadError(reason))
        self._sinks.clear()

    def _tell(self, name: str, sink: Sink, news: list[News] | Exception) -> None:
        try:
            sink(news)
        except Exception:
            _log.exception("nobody takes the news of request %s", name)
            self._loop.abort(name)
