"""What one API key uses of what it may: requests a minute, tokens a minute, requests at once.

A minute's worth may be used in one go and flows back evenly. A request starts while any token is left; what
it takes beyond is a debt that those after it wait for: so the mean holds, and no request is impossible.
"""

from math import ceil, floor
from typing import TYPE_CHECKING

from ridgeline.base.clock import Clock
from ridgeline.base.errors import RequestError

if TYPE_CHECKING:
    from ridgeline.server.keys import Key

KINDS = ("requests", "tokens", "concurrent")
_TOLD = {kind: [f"x-ratelimit-{what}-{kind}".encode() for what in ("limit", "remaining", "reset")]
         for kind in ("requests", "tokens")}  # fmt: skip
RATE_HEADERS = (*_TOLD["requests"], *_TOLD["tokens"])
_BUSY_S = 1.0  # until one of a key's requests may have ended, for all that can be known


class Bucket:
    """What flows back at an even rate, up to a minute's worth. per_minute None: there is no end of it."""

    def __init__(self, per_minute: int | None, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._level, self._at_s = float(per_minute or 0), clock.now()

    def wait_s(self, amount: float = 1.0) -> float:
        """Seconds until so many are there; 0.0 when they are."""
        if self._per_minute is None:
            return 0.0
        now = self._clock.now()
        rate = self._per_minute / 60
        self._level = min(float(self._per_minute), self._level + (now - self._at_s) * rate)
        self._at_s = now
        return max(0.0, (amount - self._level) / rate)

    def spend(self, amount: int) -> None:
        """Take some, beyond what is there too."""
        self._level -= amount

    def told(self) -> list[bytes]:
        """A minute's worth, whole ones that are left, and the time until all of it has flowed back; empty
        where there is no limit."""
        if self._per_minute is None:
            return []
        reset_s = self.wait_s(self._per_minute)
        values = self._per_minute, max(0, floor(self._level)), _duration(reset_s)
        return [str(value).encode() for value in values]


class Quota:
    """Counts for one key. limited: the server's refusals by kind, counted up here."""

    def __init__(self, key: "Key", clock: Clock, limited: dict[str, int]) -> None:
        self._key = key
        self._limited = limited
        self._requests = Bucket(key.requests_per_minute, clock)
        self._tokens = Bucket(key.tokens_per_minute, clock)
        self._num_active = 0

    def enter(self) -> None:
        """A request comes in; `leave` when it is over. Raises RequestError, status 429, with when to come
        again."""
        key = self._key
        if key.max_concurrent is not None and self._num_active >= key.max_concurrent:
            raise self._refused("concurrent", f"have {key.max_concurrent} requests at work", _BUSY_S)
        self.check_tokens()
        if wait_s := self._requests.wait_s():
            raise self._refused("requests", f"make {key.requests_per_minute} requests a minute", wait_s)
        self._requests.spend(1)
        self._num_active += 1

    def leave(self) -> None:
        """A request that came in is over."""
        self._num_active -= 1

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What is left of the key's limits now, as OpenAI tells it."""
        told = {"requests": self._requests.told(), "tokens": self._tokens.told()}
        return [pair for kind, values in told.items() for pair in zip(_TOLD[kind], values, strict=False)]

    def check_tokens(self) -> None:
        """Raises RequestError, status 429, while no token is left."""
        if wait_s := self._tokens.wait_s():
            raise self._refused("tokens", f"use {self._key.tokens_per_minute} tokens a minute", wait_s)

    def spend(self, tokens: int) -> None:
        """Tokens of a prompt or an answer have been used."""
        self._tokens.spend(tokens)

    def _refused(self, kind: str, may: str, wait_s: float) -> RequestError:
        self._limited[kind] += 1
        return RequestError(f"this API key may {may}; come again in {wait_s:.1f} s", status=429,
                            retry_after_s=wait_s)


def _duration(seconds: float) -> str:
    """As Go writes durations, and OpenAI with it: "6m0s", "1.5s", "20ms"."""
    thousandths = ceil(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    if thousandths < 1000:
        return f"{thousandths}ms" if thousandths else "0s"
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
