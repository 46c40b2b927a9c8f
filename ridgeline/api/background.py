"""Responses that are made while nobody waits for them: begun here, read from the store.

Knows neither what a response is nor how it is asked for.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from ridgeline.api.errors import as_request_error
from ridgeline.api.form import Form
from ridgeline.api.responses_store import ResponseStore
from ridgeline.api.stream import Started
from ridgeline.base.errors import RequestError

MOST_AT_WORK = 16  # of a key: else its limit of requests at once would be none

Answering = Coroutine[Any, Any, "bytes | Started[bytes]"]


class Background:
    """Those at work. Their events go into the store as they come."""

    def __init__(self, store: ResponseStore, most: int = MOST_AT_WORK) -> None:
        self._store, self._most = store, most
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_work: Counter[str] = Counter()  # by key

    async def begin(
        self, tenant: str, answer: Callable[[Callable[[Form], None]], Answering]
    ) -> Form:
        """Begin an answer, which is given as events and tells its form before it waits for any: that form.
        Raises what the answer raises before, and RequestError, status 429, where a key has too many."""
        if self._at_work[tenant] >= self._most:
            raise RequestError(f"background: this API key has {self._most} responses at work already",
                               param="background", code="too_many_responses", status=429)  # fmt: skip
        made: asyncio.Future[Form] = asyncio.get_running_loop().create_future()
        answering = asyncio.create_task(answer(made.set_result))
        self._at_work[tenant] += 1
        try:
            await asyncio.wait((answering, made), return_when=asyncio.FIRST_COMPLETED)
            form = made.result() if made.done() else None
            if form is None:
                raise answering.exception() or AssertionError("an answer without a form")
        except BaseException:
            answering.cancel()
            self._left(tenant)
            raise
        task = asyncio.create_task(self._fill(tenant, form, answering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.sleep(0)  # its log is there
        return form

    async def _fill(self, tenant: str, form: Form, answering: "asyncio.Task[bytes | Started[bytes]]") -> None:
        try:
            log = self._store.log(tenant, form.id, Started(b"", _events(form, answering)))
            async with aclosing(log):
                async for _ in log:
                    pass
        finally:
            answering.cancel()
            self._left(tenant)

    def _left(self, tenant: str) -> None:
        self._at_work[tenant] -= 1
        if not self._at_work[tenant]:
            del self._at_work[tenant]


async def _events(
    form: Form, answering: "asyncio.Task[bytes | Started[bytes]]"
) -> AsyncGenerator[bytes, None]:
    try:
        events = await answering
        assert isinstance(events, Started)
    except Exception as error:
        yield form.failure(as_request_error(error))
        return
    async with aclosing(events):
        async for body in events:
            yield body
