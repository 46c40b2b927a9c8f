"""Requests that certainly miss a target: who they are, and whether they wait on, are sent away, or rank
behind all others from then on.

Certainly late: the floor of the work that must be done before a request's first token ends after its
deadline. A floor is what no machine undercuts, in one step for all of it; and of the work counts only what
nobody can be spared: prompt tokens that no cache holds and no living prompt brings along, of the request
itself, of prompts that run and rank before it, and of those that came before it and rank before it (`Line`).
Whoever came later, or ranks behind, may start after it: when it starts, all prompts that run are planned to
their ends, and of those before it at most `passes` wait, since it is tried behind them, or as the eldest,
when they have started. (Not foreseen: that a prompt repeats what another request is generating at this
moment, that somebody leaves, or is preempted before its prompt is done.)

Certainly slow: behind so long a prompt a token takes longer than TPOT even alone. Who runs beside it may end
at any moment, so nobody else counts.
"""

import enum
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ridgeline.kv.interface import Manager
from ridgeline.schedule.book import Book
from ridgeline.schedule.line import Line
from ridgeline.schedule.request import Finish, Output, Request
from ridgeline.schedule.speculate import Shape
from ridgeline.schedule.targets import Targets


class Mode(enum.StrEnum):
    """What becomes of a request that certainly misses a target."""

    QUEUE = "queue"
    SHED = "shed"
    DEGRADE = "degrade"


class Overload:
    """targets: the first is there. price: the floor of a step. passes, by_tenant: see `Policy`."""

    def __init__(self, *, mode: Mode, targets: Targets, price: Callable[[Shape], float], block_tokens: int,
                 passes: int | None, by_tenant: bool = False) -> None:
        assert targets.ttft_s is not None
        self._mode = mode
        self._ttft_s, self._tpot_s = targets.ttft_s, targets.tpot_s
        self._price = price
        self._block_tokens = block_tokens
        self._passes, self._by_tenant = passes, by_tenant
        self._keys: dict[int, list[int]] = {}
        self._living: Counter[int] = Counter()  # blocks by the digest of all up to their end
        self._line = Line()
        self._fresh: list[Request] = []
        self._by_age: deque[Request] = deque()
        self._priced: dict[int, float] = {}
        self._token_s: dict[int, float] = {}
        self._num_late = 0

    def stats(self) -> dict[str, dict[str, float]]:
        """Since the start: choices that were certain to miss a target, by what was done with them."""
        return {"num_late": {str(mode): self._num_late * (mode is self._mode) for mode in Mode}}

    # ---- who must be computed

    def enter(self, request: Request, manager: Manager) -> None:
        """A request has joined the queue. One whose first token came from elsewhere has no deadline."""
        if request.first_token_s is not None:
            return
        size, length = self._block_tokens, request.num_prompt
        keys = _chain(request, size)
        found = manager.lookup(request.tokens, request.cache_salt, length - 1)
        cached = max(found, request.imported) // size
        new = sum(key not in self._living for key in keys[cached:])
        # The first block of these may begin as another's does.
        request.must_tokens = max(1, new * size + length % size - (size - 1)) if new else 1
        self._keys[request.number] = keys
        self._living.update(keys)
        self._line.add(request)
        self._fresh.append(request)
        self._by_age.append(request)

    def started(self, numbers: Iterable[int]) -> None:
        """These have their first step."""
        for number in numbers:
            self._line.remove(number)

    def leave(self, request: Request) -> None:
        """It has ended."""
        self._line.remove(request.number)
        for key in self._keys.pop(request.number, ()):
            self._living[key] -= 1
            if not self._living[key]:
                del self._living[key]

    # ---- who is late

    def judge(self, book: Book, now: float) -> list[Output]:
        """Look at those who came since the last call, by all that is certain to be before them, and at the
        eldest that wait, by their own; the news of those who are sent away."""
        news: list[Output] = []
        for request in self._fresh:
            if _waits(request):
                slow_s = self._slow_s(request)
                news += self._judge_fresh(book, request, now) if slow_s is None else (
                    self._late(book, request, None, (
                        f"each further token is due {self._tpot_s:g} s after the one before, and behind a "
                        f"prompt of {request.num_prompt} tokens it takes at least {slow_s:.3g} s")))
        self._fresh.clear()
        while self._by_age:
            eldest = self._by_age[0]
            if _waits(eldest):
                news += self._judge(book, eldest, 0, now)
                if _waits(eldest):
                    break
            self._by_age.popleft()
        return news

    def _judge_fresh(self, book: Book, request: Request, now: float) -> list[Output]:
        """By all that is before it; who would be in time behind everybody needs no closer look."""
        left = np.maximum(book.rows.num_prompt - book.rows.scheduled, 0)
        most = self._line.tokens() + int(np.add.reduce(left))
        if now - request.arrived_s + self._least_s(most) <= self._ttft_s:
            return []
        return self._judge(book, request, self._before(book, request), now)

    def _judge(self, book: Book, request: Request, before: int, now: float) -> list[Output]:
        least_s = self._least_s(before + request.must_tokens)
        waited_s = now - request.arrived_s
        if waited_s + least_s <= self._ttft_s:
            return []
        rest = self._line.tokens() + int(book.rows.pending().sum())
        return self._late(book, request, max(1.0, self._least_s(max(1, rest)) - self._ttft_s), (
            f"the first token is due {self._ttft_s:g} s after arrival, {waited_s:.3g} s have passed, and "
            f"what must be computed first takes at least {least_s:.3g} s"))

    def _late(self, book: Book, request: Request, retry_s: float | None, why: str) -> list[Output]:
        """It misses a target. retry_s: until the work that stands now, at its floor, leaves time for a
        deadline again; None where no waiting helps."""
        family: Sequence[Request] = book.family(request.id)
        for choice in family:
            choice.late = True
        self._num_late += len(family)
        news = []
        if self._mode is Mode.DEGRADE:
            book.degrade(request)
            self._line.move(request)
        elif self._mode is Mode.SHED:
            for choice in family:
                choice.retry_after_s = retry_s
                book.finish(choice, Finish.SHED, book.waits.now)
                news.append(choice.news(error=why))
            self._line.remove(request.number)
        return news

    def _before(self, book: Book, request: Request) -> int:
        """Tokens that are computed before its last one, whatever happens; one less of each prompt, whose last
        token may be left over (`budget`)."""
        if self._passes is None:
            return 0
        rows = book.rows
        left = rows.num_prompt - rows.scheduled - 1
        at = (left > 0).nonzero()[0]
        running = sum(tokens for other, tokens in zip(rows.requests(at), left[at].tolist())
                      if other.order < request.order
                      and (not self._by_tenant or other.tenant == request.tenant))
        return running + self._line.before(request, self._passes, same_tenant=self._by_tenant)

    def _slow_s(self, request: Request) -> float | None:
        """Seconds of its second token alone, where they are more than TPOT; rounded down in the prompt."""
        if self._tpot_s is None or request.max_tokens < 2:
            return None
        drop = max(0, request.num_prompt.bit_length() - 6)
        length = request.num_prompt >> drop << drop
        if length not in self._token_s:
            self._token_s[length] = self._price(Shape(start=np.full(1, length), count=np.ones(1, np.int64),
                                                      num_sampled=1))
        return self._token_s[length] if self._token_s[length] > self._tpot_s else None

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
