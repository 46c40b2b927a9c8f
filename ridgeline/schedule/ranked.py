"""Requests in the policy's order: those that wait, and those that run."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from ridgeline.schedule.request import Request


def _order(request: Request) -> tuple[float, ...]:
    return request.order


class Ranked:
    """Sorted by `Request.order`, which is unique and fixed: a preempted request finds its old place again."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def first(self) -> Request:
        return self._requests[0]

    @property
    def last(self) -> Request:
        return self._requests[-1]

    def after(self, request: Request) -> list[Request]:
        """Those behind a request, which need not be among them."""
        return self._requests[bisect_right(self._requests, request.order, key=_order):]

    def head(self, num: int) -> list[Request]:
        """At most `num` of them, first in order first."""
        return self._requests[:num]

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=_order)

    def remove(self, request: Request) -> None:
        place = bisect_left(self._requests, request.order, key=_order)
        assert self._requests[place] is request
        del self._requests[place]
