"""Requests in an order: those that run, by the policy's rank; those that wait, by rank, by age and by
tenant."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ridgeline.schedule.request import Request


def _order(request: Request) -> tuple[float, ...]:
    return request.order


def _number(request: Request) -> int:
    return request.number


def _class(request: Request) -> float:
    return request.order[0]


def _arrival(request: Request) -> float:
    return request.arrived_s


class Ranked:
    """Sorted by a key that is unique: by `Request.order`, unless another is given. A request that comes again
    finds its old place."""

    def __init__(self, key: Callable[[Request], Any] = _order) -> None:
        self._key = key
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, place: int) -> Request:
        return self._requests[place]

    @property
    def first(self) -> Request:
        return self._requests[0]

    @property
    def last(self) -> Request:
        return self._requests[-1]

    def after(self, request: Request) -> list[Request]:
        """Those behind a request, which need not be among them."""
        return self._requests[bisect_right(self._requests, self._key(request), key=self._key):]

    def head(self, num: int, start: int = 0) -> list[Request]:
        """At most `num` of them from the place `start` on, first in order first."""
        return self._requests[start:start + num]

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=self._key)

    def remove(self, request: Request) -> None:
        place = bisect_left(self._requests, self._key(request), key=self._key)
        assert self._requests[place] is request
        del self._requests[place]


class Waiting(Ranked):
    """The queue: by rank, and beside that by age (the order in which requests were numbered) and by
    tenant."""

    def __init__(self) -> None:
        super().__init__()
        self._by_age = Ranked(_number)
        self._tenants: dict[str, Ranked] = {}

    @property
    def eldest(self) -> Request:
        return self._by_age.first

    def classes(self) -> Iterator[tuple[float, int, int]]:
        """(class, its first place, the place behind its last), soonest first, where the rank begins with a
        class."""
        place = 0
        while place < len(self._requests):
            rank = self._requests[place].order[0]
            end = bisect_right(self._requests, rank, place, key=_class)
            yield rank, place, end
            place = end

    def since(self, moment_s: float, start: int, end: int) -> int:
        """The first place of those who arrived at a moment or later, among places of one class, where the
        rank within it is by arrival."""
        return bisect_left(self._requests, moment_s, start, end, key=_arrival)

    @property
    def tenants(self) -> Mapping[str, Ranked]:
        """The waiting requests of each tenant that has some, by rank."""
        return self._tenants

    def add(self, request: Request) -> None:
        super().add(request)
        self._by_age.add(request)
        self._tenants.setdefault(request.tenant, Ranked()).add(request)

    def remove(self, request: Request) -> None:
        super().remove(request)
        self._by_age.remove(request)
        lane = self._tenants[request.tenant]
        lane.remove(request)
        if not lane:
            del self._tenants[request.tenant]
