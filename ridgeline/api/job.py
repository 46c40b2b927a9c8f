"""One API request at work: its prompts as engine requests, their news as deltas, and an end that leaves
nothing behind.

Knows no HTTP and no answer format.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from ridgeline.account.clocks import PromptClock, RequestClock
from ridgeline.api.lane import Lane, Lanes
from ridgeline.api.outlet import Outlet
from ridgeline.api.prompts import Prompt
from ridgeline.base.errors import RequestError
from ridgeline.frontend.generation import Choice, Delta, Generation, LogprobEntry
from ridgeline.frontend.inbox import AtOnce
from ridgeline.frontend.protocol import News
from ridgeline.frontend.tokenizer import Tokenizer
from ridgeline.spec.sampling import SamplingParams


class Engine(Protocol):
    """What the server needs of the engine's client."""

    @property
    def dead(self) -> str | None:
        """Why the engine cannot be used now, or None."""
        ...

    @property
    def num_restarts(self) -> int:
        """How often it was started again after it had died."""
        ...

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        adapter: str = "",
        arrived_s: float | None = None,
        predicted_output: int | None = None,
        at_once: AtOnce | None = None,
    ) -> AsyncGenerator[News, None]:
        """News until every choice is closed. Closing the generator early aborts the request. at_once: may
        take news that closes no choice while the generator waits, see frontend.inbox."""
        ...

    def abort(self, request_id: str, choice: int | None = None, keep_tokens: int | None = None) -> None: ...

    async def ask(self, what: str) -> Mapping[str, Any]: ...

    async def load_adapter(self, name: str, path: str, *, replace: bool) -> Mapping[str, Any]: ...

    async def unload_adapter(self, name: str) -> None: ...


class Piece(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delta of one choice, numbered over all prompts: prompt index times n plus the prompt's own choice."""

    index: int
    delta: Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Where pieces may go at once. written: one as bytes, by its index and its delta. frame: `Form.frame`."""

    outlet: Outlet
    written: Callable[[int, Delta], bytes]
    frame: Callable[[int], tuple[bytes, bytes] | None]


class Job:
    """The prompts of one request, all with the same parameters, and what came of them."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        priority: int,
        cache_salt: str,
        adapter: str,
        predicted_output: int | None = None,
    ) -> None:
        self.prompts = prompts
        self.params = params
        self.tokenizer = tokenizer
        self.generations = [Generation(tokenizer, params) for _ in prompts]
        self.entries: list[list[LogprobEntry]] = [[] for _ in range(len(prompts) * params.n)]
        self._engine = engine
        self._priority = priority
        self._cache_salt = cache_salt
        self._adapter = adapter
        self._predicted_output = predicted_output
        self._running: set[str] = set()
        self._ended = [asyncio.Event() for _ in prompts]
        self.cancelled = False

    def choice(self, index: int) -> Choice:
        """A choice by its number over all prompts."""
        prompt, choice = divmod(index, self.params.n)
        return self.generations[prompt].choices[choice]

    def cancel(self) -> None:
        """End it where it is; its last pieces, which say "abort", still come."""
        self.cancelled = True
        for request_id in self._running:
            self._engine.abort(request_id)

    def run(
        self, clock: RequestClock, now: Callable[[], float], push: Push | None = None
    ) -> AsyncGenerator[Piece, None]:
        """Deltas as they come. Closing it early aborts what still runs in the engine. push: has those that
        it can take, and what is given out are the others."""
        if len(self.prompts) == 1:
            return self._one(0, clock, now, push)
        return _merged([self._one(index, clock, now, None) for index in range(len(self.prompts))])

    async def _one(
        self, index: int, clock: RequestClock, now: Callable[[], float], push: Push | None
    ) -> AsyncGenerator[Piece, None]:
        prompt = self.prompts[index]
        if prompt.after is not None:
            await self._ended[prompt.after].wait()
        request_id = uuid.uuid4().hex
        timed = clock.prompt(self.params.n, now())
        self._running.add(request_id)

        lanes = None if push is None else self._lanes(index, request_id, timed, push)
        news_of = self._engine.submit(
            request_id,
            prompt.token_ids,
            replace(self.params, prompt_logprobs_from=prompt.scored_from),
            priority=self._priority,
            cache_salt=self._cache_salt,
            tenant=clock.caller.tenant,
            adapter=self._adapter,
            arrived_s=clock.arrived_s,
            predicted_output=self._predicted_output,
            at_once=lanes,
        )
        try:
            async with aclosing(news_of):
                async for news in news_of:
                    if lanes is not None:
                        lanes.settle()
                    piece = self._piece(index, news, timed, now())
                    if piece is not None:
                        yield piece
        except BaseException as error:
            if lanes is not None:
                lanes.settle()
            timed.end(_reason(error), now())
            raise
        finally:
            self._running.discard(request_id)
            self._ended[index].set()

    def _lanes(self, index: int, request_id: str, timed: PromptClock, push: Push) -> Lanes:
        """The short way of a prompt's tokens."""

        def first(choice: int, tokens: Sequence[int], now_s: float) -> Lane | None:
            news = News(id=request_id, choice=choice, new_tokens=tokens)
            piece = self._piece(index, news, timed, now_s)
            if piece is not None and (body := push.written(piece.index, piece.delta)):
                push.outlet.write(body)
            own, number = self.generations[index].choices[choice], index * self.params.n + choice
            if own.plain is None or (frame := push.frame(number)) is None:
                return None
            return Lane(own, own.plain, timed, timed.choices[choice], frame, push.outlet)

        return Lanes(push.outlet, first)

    def _piece(self, index: int, news: News, timed: PromptClock, now_s: float) -> Piece | None:
        """What news of a prompt adds, if anything; a stop string ends its choice in the engine too."""
        delta = self.generations[index].feed(news)
        timed.seen(news, delta, now_s)
        if delta.abort_keep is not None:
            self._engine.abort(news.id, news.choice, delta.abort_keep)
        if not delta.token_ids and delta.finish is None:
            return None
        number = index * self.params.n + news.choice
        if delta.entries:
            self.entries[number] += delta.entries
        return Piece(index=number, delta=delta)


def _reason(error: BaseException) -> str:
    """Why choices end that an error leaves open."""
    if not isinstance(error, Exception):  # its reader went away
        return "abort"
    return "refused" if isinstance(error, RequestError) else "error"


async def _merged(sources: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """The pieces of all sources in the order in which they come; the first failure of any ends all."""
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()

    async def drain(source: AsyncGenerator[Piece, None]) -> None:
        try:
            async with aclosing(source):
                async for piece in source:
                    queue.put_nowait(piece)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(drain(source)) for source in sources]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
