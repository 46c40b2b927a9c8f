"""Responses that clients may come back to, and the events of those that were streamed: in memory, each within
a bound of bytes and of their number.

An API key sees its own alone. Knows no HTTP.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from ridgeline.api.answers import to_json
from ridgeline.api.events import EventLog, split
from ridgeline.api.shelf import Shelf
from ridgeline.api.stream import Started, event
from ridgeline.api.types import Message
from ridgeline.base.errors import RequestError

MOST_BYTES, MOST_RESPONSES = 64 * 2**20, 4096
_GONE = "the events of this response are not kept any more: its request was ended, or they had to make room"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A response's body, and the whole conversation up to its end; instructions are no part of it."""

    body: bytes
    turns: Sequence[Message]


class ResponseStore:
    """By key and response id. The bounds hold for bodies, and once more for events."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_responses: int = MOST_RESPONSES) -> None:
        self._stored: Shelf[Stored] = Shelf(most_bytes, most_responses)
        self._logs: Shelf[EventLog] = Shelf(most_bytes, most_responses, EventLog.forget)

    def put(self, tenant: str, response_id: str, stored: Stored) -> None:
        """Keep one. A single response above the bound is not kept."""
        self._stored.put(tenant, response_id, stored,
                         len(stored.body) + len(msgspec.json.encode(stored.turns)))  # fmt: skip

    def get(self, tenant: str, response_id: str, *, status: int = 404) -> Stored:
        """Raises RequestError, with this status, for what is not there, or not this key's."""
        found = self._stored.get(tenant, response_id)
        if found is None:
            param = "previous_response_id" if status == 400 else "response_id"
            raise RequestError(
                f"there is no response {response_id!r:.100} of this API key; it may have been deleted, not "
                "been stored, or had to make room", param=param, code="response_not_found", status=status,
            )  # fmt: skip
        return found

    def delete(self, tenant: str, response_id: str) -> None:
        """Forget one and its events. Raises RequestError as `get` does."""
        self.get(tenant, response_id)
        self._stored.drop(tenant, response_id)
        self._logs.drop(tenant, response_id)

    async def log(self, tenant: str, response_id: str, events: Started[bytes]) -> AsyncGenerator[bytes, None]:
        """The same events, kept as they pass; given up before their end, none of them are."""
        log, whole = EventLog(), False
        self._logs.put(tenant, response_id, log, 0)
        try:
            async with aclosing(events):
                async for body in events:
                    if not log.over:
                        self._logs.grow(tenant, response_id, sum(log.add(one) for one in split(body)))
                    yield body
            whole = True
        finally:
            log.close()
            if not whole:
                self._logs.drop(tenant, response_id)

    def follow(self, tenant: str, response_id: str, place: int) -> Started[bytes]:
        """The events from the one with this sequence number on, as they come. Raises RequestError, 400, where
        none are kept, and for a number beyond those that are there."""
        log = self._logs.get(tenant, response_id)
        if log is None:
            raise RequestError(
                "no events of this response are kept: it was not streamed, or they had to make room",
                param="stream", code="events_not_kept",
            )  # fmt: skip
        if place > log.end:
            raise RequestError(
                f"starting_after: the last event of this response has the number {log.end - 1}",
                param="starting_after", code="invalid_value",
            )  # fmt: skip
        return Started(b"", _read(log, place))


async def _read(log: EventLog, place: int) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(log.read(place)) as events:
            async for body in events:
                yield body
    except LookupError:
        told = {"type": "error", "sequence_number": log.end, "code": "events_gone", "message": _GONE,
                "param": None}  # fmt: skip
        yield event(to_json(told), "error")
