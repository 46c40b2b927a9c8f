"""Who asks, as far as the API needs to know, and what a request of theirs has used."""

import uuid
from dataclasses import dataclass, field
from typing import Protocol


class Limit(Protocol):
    """What an API key may use."""

    def check_tokens(self) -> None:
        """Raises RequestError, status 429, while no token is left."""
        ...

    def spend(self, tokens: int) -> None:
        """Tokens of a prompt or an answer have been used."""
        ...


class Use:
    """What one request has used so far. limit: its key's, or None. finished: why its choices ended."""

    __slots__ = ("_limit", "finished", "num_output", "num_prompt")

    def __init__(self, limit: Limit | None = None) -> None:
        self._limit = limit
        self.num_prompt = 0
        self.num_output = 0
        self.finished: list[str] = []

    def prompt(self, tokens: int) -> None:
        """Its prompts are about to start. Raises RequestError, status 429, when its key has no token left."""
        if self._limit is not None:
            self._limit.check_tokens()
            self._limit.spend(tokens)
        self.num_prompt += tokens

    def output(self, tokens: int) -> None:
        """Tokens of its answer have come."""
        if self._limit is not None:
            self._limit.spend(tokens)
        self.num_output += tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, in one request. tenant: a name that goes with the API key and does not show it; "" without
    keys. priority: the key's own, of which no request of it may be sooner; None when it has none.
    thinking_budget: the key's, in tokens. traceparent: the header of W3C's trace context. admin: may change
    what the server serves."""

    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    tenant: str = ""
    priority: int | None = None
    thinking_budget: int | None = None
    traceparent: str = ""
    admin: bool = True
    use: Use = field(default_factory=Use, compare=False)
