"""What API keys leave in memory, within a bound of bytes and of number; where room is short, the oldest of
the key that holds most goes."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shelf(Generic[T]):
    """Newest last, by key and name. gone: hears of each thing that leaves it."""

    def __init__(self, most_bytes: int, most: int, gone: Callable[[T], None] = lambda thing: None) -> None:
        self._most_bytes, self._most, self._gone = most_bytes, most, gone
        self._things: OrderedDict[tuple[str, str], tuple[T, int]] = OrderedDict()
        self._held: Counter[str] = Counter()  # bytes by key
        self._num_bytes = 0

    def put(self, tenant: str, name: str, thing: T, num_bytes: int) -> None:
        """Keep one. What alone is above the bound is not kept."""
        if num_bytes > self._most_bytes:
            self._gone(thing)
            return
        self._things[tenant, name] = thing, num_bytes
        self._count(tenant, num_bytes)
        while self._num_bytes > self._most_bytes or len(self._things) > self._most:
            ((most, _),) = self._held.most_common(1)
            self.drop(*next(key for key in self._things if key[0] == most))

    def grow(self, tenant: str, name: str, num_bytes: int) -> None:
        """One that is there takes so many bytes more; it counts as new."""
        thing, before = self._things.pop((tenant, name))
        self._count(tenant, -before)
        self.put(tenant, name, thing, before + num_bytes)

    def get(self, tenant: str, name: str) -> T | None:
        found = self._things.get((tenant, name))
        return None if found is None else found[0]

    def drop(self, tenant: str, name: str) -> None:
        """Forget one; nothing where it is not there."""
        found = self._things.pop((tenant, name), None)
        if found is None:
            return
        self._count(tenant, -found[1])
        self._gone(found[0])

    def _count(self, tenant: str, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._held[tenant] += num_bytes
        if not self._held[tenant]:
            del self._held[tenant]
