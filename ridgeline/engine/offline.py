"""Batches of requests on a loop in this thread: all in, step until all are out. Knows no model."""

import gc
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import msgspec

from ridgeline.base.clock import Clock
from ridgeline.base.errors import RequestError
from ridgeline.engine.adapters import Adapters, seated
from ridgeline.engine.outputs import OutputBuilder, RequestOutput
from ridgeline.engine.requests import EncodedRequest
from ridgeline.engine.wire import news_of, token_array
from ridgeline.frontend.generation import Generation
from ridgeline.frontend.tokenizer import Tokenizer
from ridgeline.nn.progress import Progress
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.plan import RowLogprobs
from ridgeline.schedule.request import NewRequest, Output


class Offline:
    """One loop for one caller at a time; a second thread waits for the first one's batch."""

    def __init__(
        self, loop: Loop, tokenizer: Tokenizer | None, clock: Clock, adapters: Adapters | None = None
    ) -> None:
        self._loop = loop
        self._tokenizer = tokenizer
        self._clock = clock
        self._adapters = adapters
        self._numbers = count()
        self._busy = threading.Lock()

    def run(
        self, requests: Sequence[EncodedRequest], *, priority: int = 0, progress: bool = False,
        adapter: str = "",
    ) -> list[RequestOutput]:  # fmt: skip
        """The outputs in the order of the requests. adapter: the name of what all of them take.

        Raises RequestError when one of them can never run; then none of them has. Ctrl-C takes effect
        after the step in flight and leaves nothing running.
        """
        with self._busy, Progress("generating", len(requests), shown=progress) as bar:
            builders: dict[str, OutputBuilder] = {}
            with _old_objects_aside(), _deferred_interrupt() as interrupted:
                try:
                    for request in requests:
                        self._add(request, builders, priority, adapter)
                    self._drain(builders, bar, interrupted)
                except (RequestError, KeyboardInterrupt):
                    self._clear(builders)
                    raise
        return [builder.build() for builder in builders.values()]

    def _add(
        self, request: EncodedRequest, builders: dict[str, OutputBuilder], priority: int, adapter: str
    ) -> None:
        name = str(next(self._numbers))
        prompt = token_array(request.token_ids)
        new = NewRequest(
            id=name, prompt=prompt, params=request.params, priority=priority, arrived_s=self._clock.now()
        )
        self._loop.add(seated(self._adapters, new, adapter))
        builders[name] = OutputBuilder(
            name, request.text, request.token_ids, Generation(self._tokenizer, request.params)
        )

    def _drain(self, builders: dict[str, OutputBuilder], bar: Progress, interrupted: threading.Event) -> None:
        """Only a stop string has to be looked for at every step; other requests are read when they end."""
        loop = self._loop
        held = {
            name: [_Held() for _ in builder.generation.choices]
            for name, builder in builders.items() if not builder.generation.params.stop
        }  # fmt: skip
        while loop.has_work():
            if interrupted.is_set():
                raise KeyboardInterrupt
            for output in loop.step():
                if (choices := held.get(output.id)) is not None:
                    earlier = choices[output.choice]
                    if output.finish is None:
                        earlier.take(output)
                        continue
                    output = earlier.joined(output)
                generation = builders[output.id].generation
                delta = generation.feed(news_of(output))
                if delta.abort_keep is not None:
                    loop.abort(output.id, output.choice, delta.abort_keep)
                if output.finish is not None and generation.engine_done:
                    bar.advance(1)

    def _clear(self, builders: dict[str, OutputBuilder]) -> None:
        for name in builders:
            self._loop.abort(name)
        while self._loop.has_work():
            self._loop.step()


class _Held:
    """What one choice was told before it ends. Kept as lists, so that little is left to do when all of a
    batch end in one step: until then a GPU computes meanwhile."""

    __slots__ = ("logprobs", "prompt_logprobs", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[RowLogprobs] = []
        self.prompt_logprobs: list[tuple[int, RowLogprobs]] = []

    def take(self, output: Output) -> None:
        self.tokens += output.new_tokens
        if output.logprobs:
            self.logprobs += output.logprobs
        if output.prompt_logprobs:
            self.prompt_logprobs += output.prompt_logprobs

    def joined(self, last: Output) -> Output:
        """All of it, as if it had come at once with the last."""
        self.take(last)
        return msgspec.structs.replace(
            last, new_tokens=tuple(self.tokens), logprobs=tuple(self.logprobs),
            prompt_logprobs=tuple(self.prompt_logprobs),
        )  # fmt: skip


@contextmanager
def _old_objects_aside() -> Iterator[None]:
    """Collections do not walk what was there before: with torch and Triton loaded that takes 0.2 s, and comes
    where requests are made. Whoever has frozen objects already knows better."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets: an exception inside a step would leave the loop between two states.

    Only where Python's own handler is in place, in the thread of signals. A second Ctrl-C acts at once.
    """
    event = threading.Event()
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield event
        return

    def note(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        event.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
