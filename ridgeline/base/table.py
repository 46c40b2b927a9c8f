"""A named table of variants (families, policies, block rooms) whose miss is a helpful error."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from operator import attrgetter
from typing import Generic, TypeVar, cast

from ridgeline.base.errors import ConfigError

V = TypeVar("V")


class Table(Generic[V]):
    """An immutable name -> entry table; a wrong name lists the nearest and all the right ones."""

    def __init__(self, kind: str, entries: Mapping[str, V]) -> None:
        self._kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> V:
        if name in self._entries:
            return self._entries[name]
        near = get_close_matches(name, self._entries, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        known = ", ".join(sorted(self._entries))
        raise ConfigError(f"no {self._kind} named {name!r}: {hint}known are {known}")

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)


class LazyTable(Table[V]):
    """A table of places, "module:object" or "module:object.part", each imported when it is asked for."""

    def __init__(self, kind: str, places: Mapping[str, str]) -> None:
        super().__init__(kind, {})
        self._places = Table(kind, places)

    def __getitem__(self, name: str) -> V:
        module, _, entry = self._places[name].partition(":")
        return cast(V, attrgetter(entry)(import_module(module)))

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)
