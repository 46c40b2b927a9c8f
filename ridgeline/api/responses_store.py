"""Responses that clients may come back to, in memory, within a bound of bytes and of their number.

An API key sees its own alone. Where room is short, the oldest of the key that holds most goes. Knows no HTTP.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ridgeline.api.types import Message
from ridgeline.base.errors import RequestError

MOST_BYTES, MOST_RESPONSES = 64 * 2**20, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A response's body, and the whole conversation up to its end; instructions are no part of it."""

    body: bytes
    turns: Sequence[Message]


class ResponseStore:
    """Newest last, by key and response id."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_responses: int = MOST_RESPONSES) -> None:
        self._most_bytes, self._most_responses = most_bytes, most_responses
        self._stored: OrderedDict[tuple[str, str], tuple[Stored, int]] = OrderedDict()
        self._held: Counter[str] = Counter()  # bytes by key

    def put(self, tenant: str, response_id: str, stored: Stored) -> None:
        """Keep one. A single response above the bound is not kept."""
        num_bytes = len(stored.body) + len(msgspec.json.encode(stored.turns))
        if num_bytes > self._most_bytes:
            return
        self._stored[tenant, response_id] = stored, num_bytes
        self._held[tenant] += num_bytes
        while self._held.total() > self._most_bytes or len(self._stored) > self._most_responses:
            ((most, _),) = self._held.most_common(1)
            self._drop(next(key for key in self._stored if key[0] == most))

    def get(self, tenant: str, response_id: str, *, status: int = 404) -> Stored:
        """Raises RequestError, with this status, for what is not there, or not this key's."""
        found = self._stored.get((tenant, response_id))
        if found is None:
            param = "previous_response_id" if status == 400 else "response_id"
            raise RequestError(
                f"there is no response {response_id!r:.100} of this API key; it may have been deleted, not "
                "been stored, or had to make room", param=param, code="response_not_found", status=status,
            )  # fmt: skip
        return found[0]

    def delete(self, tenant: str, response_id: str) -> None:
        """Forget one. Raises RequestError as `get` does."""
        self.get(tenant, response_id)
        self._drop((tenant, response_id))

    def _drop(self, key: tuple[str, str]) -> None:
        _, num_bytes = self._stored.pop(key)
        self._held[key[0]] -= num_bytes
        if not self._held[key[0]]:
            del self._held[key[0]]
