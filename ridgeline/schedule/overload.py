"""Requests that certainly miss their deadline: who they are, and whether they wait on, are sent away, or rank
behind all others from then on.

Certainly: the floor of the work that must be done before a request's first token ends after its deadline. A
floor is what no machine undercuts, in one step for all of it; and of the work counts only what nobody can be
spared: prompt tokens that no cache holds and no living prompt brings along, of the request itself and, under
a policy that keeps to arrival, of those before it. (That a prompt repeats what another request is generating
at this moment is not foreseen, nor that somebody leaves.)
"""

import enum
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

import numpy as np

from ridgeline.kv.interface import Manager
from ridgeline.schedule.book import Book
from ridgeline.schedule.request import Finish, Output, Request
from ridgeline.schedule.speculate import Shape


class Mode(enum.StrEnum):
    """What becomes of a request that certainly misses its deadline."""

    QUEUE = "queue"
    SHED = "shed"
    DEGRADE = "degrade"


class Overload:
    """ttft_s: from a request's arrival to its deadline. price: the floor of a step. passes: how many that
    came before it and wait a request may pass, by the policy; None where that is not known."""

    def __init__(self, *, mode: Mode, ttft_s: float, price: Callable[[Shape], float], block_tokens: int,
                 passes: int | None) -> None:
        self._mode = mode
        self._ttft_s = ttft_s
        self._price = price
        self._block_tokens = block_tokens
        self._passes = passes
        self._keys: dict[int, list[int]] = {}
        self._living: Counter[int] = Counter()  # blocks by the digest of all up to their end
        self._fresh: list[Request] = []
        self._by_age: deque[Request] = deque()
        self._priced: dict[int, float] = {}
        self._num_late = 0

    def stats(self) -> dict[str, dict[str, float]]:
        """Since the start: choices that were certain to be late, by what was done with them."""
        return {"num_late": {str(mode): self._num_late * (mode is self._mode) for mode in Mode}}

    # ---- who must be computed

    def enter(self, request: Request, manager: Manager) -> None:
        """A request has joined the queue."""
        size, length = self._block_tokens, request.num_prompt
        keys = _chain(request, size)
        found = manager.lookup(request.tokens, request.cache_salt, length - 1)
        cached = max(found, request.imported) // size
        new = sum(key not in self._living for key in keys[cached:])
        # The first block of these may begin as another's does.
        request.must_tokens = max(1, new * size + length % size - (size - 1)) if new else 1
        self._keys[request.number] = keys
        self._living.update(keys)
        self._fresh.append(request)
        self._by_age.append(request)

    def leave(self, request: Request) -> None:
        """It has ended."""
        for key in self._keys.pop(request.number, ()):
            self._living[key] -= 1
            if not self._living[key]:
                del self._living[key]

    # ---- who is late

    def judge(self, book: Book, now: float) -> list[Output]:
        """Look at those who came since the last call, by all that is certain to be before them, and at the
        eldest that wait, by their own; the news of those who are sent away."""
        news: list[Output] = []
        before, gone = self._before(book) if self._fresh else {}, 0
        for request in self._fresh:
            if _waits(request):
                news += self._judge(book, request, max(0, before.get(request.number, 0) - gone), now)
                if request.late and self._mode is not Mode.QUEUE:
                    gone += request.must_tokens - 1
        self._fresh.clear()
        while self._by_age:
            eldest = self._by_age[0]
            if _waits(eldest):
                news += self._judge(book, eldest, 0, now)
                if _waits(eldest):
                    break
            self._by_age.popleft()
        return news

    def _judge(self, book: Book, request: Request, before: int, now: float) -> list[Output]:
        least_s = self._least_s(before + request.must_tokens)
        if now + least_s <= request.arrived_s + self._ttft_s:
            return []
        family: Sequence[Request] = book.family(request.id)
        for choice in family:
            choice.late = True
        self._num_late += len(family)
        if self._mode is Mode.DEGRADE:
            book.degrade(request)
        return self._shed(book, family, least_s, now) if self._mode is Mode.SHED else []

    def _before(self, book: Book) -> dict[int, int]:
        """Of each that came since the last call: tokens that are computed before its last one, whatever
        happens; one less of each prompt, whose last token may be left over (`budget`)."""
        if self._passes is None:
            return {}
        came = {request.number for request in self._fresh}
        tokens = int(np.maximum(book.rows.num_prompt - book.rows.scheduled - 1, 0).sum())
        largest: list[int] = []  # of those that wait, which may be passed
        found = {}
        for request in book.queue:
            if request.first_scheduled_s is None:
                if request.number in came:
                    found[request.number] = tokens
                heappush(largest, request.must_tokens - 1)
                if len(largest) > self._passes:
                    tokens += heappop(largest)
        return found

    def _least_s(self, num_tokens: int) -> float:
        """The floor of so many prompt tokens, rounded down to six bits so that few are ever asked for: read
        together, each with as little before it as can be."""
        drop = max(0, num_tokens.bit_length() - 6)
        num_tokens = num_tokens >> drop << drop
        if num_tokens not in self._priced:
            blocks = -(-num_tokens // self._block_tokens)
            count = np.full(blocks, self._block_tokens, np.int64)
            count[-1] -= blocks * self._block_tokens - num_tokens
            step = Shape(start=np.zeros(blocks, np.int64), count=count, num_sampled=1)
            self._priced[num_tokens] = self._price(step)
        return self._priced[num_tokens]

    def _shed(self, book: Book, family: Iterable[Request], least_s: float, now: float) -> list[Output]:
        """retry_after_s: until the work that stands now, at its floor, leaves time for a deadline again."""
        rest = sum(other.must_tokens for other in book.queue) + int(book.rows.pending().sum())
        retry_s = max(1.0, self._least_s(max(1, rest)) - self._ttft_s)
        news = []
        for choice in family:
            waited_s = now - choice.arrived_s
            choice.retry_after_s = retry_s
            book.finish(choice, Finish.SHED, now)
            news.append(choice.news(error=(
                f"the first token is due {self._ttft_s:g} s after arrival, {waited_s:.3g} s have passed, and "
                f"what must be computed first takes at least {least_s:.3g} s")))
        return news


def _waits(request: Request) -> bool:
    """For its first step, and nothing is decided of it yet."""
    return not request.late and request.finish is None and request.first_scheduled_s is None


def _chain(request: Request, size: int) -> list[int]:
    """A key for each full block of the prompt, equal for equal tokens up to its end under an equal salt."""
    key, keys, text = hash(request.cache_salt), [], request.prompt.tobytes()
    for place in range(0, request.num_prompt // size * size * 4, size * 4):
        key = hash((key, text[place:place + size * 4]))
        keys.append(key)
    return keys
