"""The arena's pages: reference counts, pins, what is free, what is idle but cached, and when a page may be
reused.

Each page but the null page is in exactly one place: held (references > 0), pending (nobody holds it, but a
step in flight or a copy still touches it), idle (cached, may be evicted) or free. Knows no sequence and no
token.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from ridgeline.kv.prefix import Entry, PrefixIndex

NULL_PAGE = 0


class Below(Protocol):
    """Where evicted pages go."""

    def keep(self, page: int, entry: Entry) -> None:
        """This page's content is needed no longer here."""
        ...


class PagePool:
    """Hands out pages: free ones first, then idle cached ones, least recently used and leaf first.

    leaf_first[group]: whether a page of the group is worthless without the pages before it (see kinds.py);
    such a page's cached followers are evicted before it. below: hears of each page that is evicted, before it
    is handed out; None where nobody wants them.
    """

    def __init__(self, num_pages: int, index: PrefixIndex, leaf_first: tuple[bool, ...]) -> None:
        assert num_pages > 1, "the null page alone is no arena"
        self.num_pages = num_pages
        self.refs = [0] * num_pages
        self.num_evicted = 0
        self.below: Below | None = None
        self._index = index
        self._leaf_first = leaf_first
        self._pins: dict[int, int] = {}
        self._free = list(range(num_pages - 1, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._pending: OrderedDict[int, int] = OrderedDict()  # page -> last step closed when it was dropped
        self._closed = -1
        self._finished = -1

    @property
    def num_free(self) -> int:
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    @property
    def num_held(self) -> int:
        return self.num_pages - 1 - len(self._free) - len(self._idle) - len(self._pending)

    def take(self) -> int:
        """A page with one reference; the caller has made sure that num_free > 0."""
        if self._free:
            page = self._free.pop()
        else:
            page = self._victim()
            self._forget(page)
        self.refs[page] = 1
        return page

    def take_all(self, num: int) -> list[int]:
        """take(), so many times."""
        some = max(len(self._free) - num, 0)
        pages = self._free[:some - 1 if some else None:-1]
        del self._free[some:]
        for _ in range(num - len(pages)):
            page = self._victim()
            self._forget(page)
            pages.append(page)
        refs = self.refs
        for page in pages:
            refs[page] = 1
        return pages

    def hold(self, page: int) -> None:
        """One more reference to a page that is held or cached."""
        if self.refs[page] == 0:
            if page in self._idle:
                del self._idle[page]
            else:
                del self._pending[page]
        self.refs[page] += 1

    def drop(self, page: int) -> None:
        """One reference less. The last one makes it idle or free, at once or when steps and copies are done
        with it."""
        self.refs[page] -= 1
        if self.refs[page]:
            return
        if self._closed > self._finished or page in self._pins:
            self._pending[page] = self._closed
        else:
            self._settle((page,))

    def drop_all(self, pages: Iterable[int]) -> None:
        """drop() of each, in order."""
        refs, pins, pending, step = self.refs, self._pins, self._pending, self._closed
        flying = step > self._finished
        over = []
        for page in pages:
            refs[page] -= 1
            if not refs[page]:
                if flying or page in pins:
                    pending[page] = step
                else:
                    over.append(page)
        self._settle(over)

    def touch(self, page: int) -> None:
        """A cached page counts as used just now."""
        self.hold(page)
        self.drop(page)

    def is_idle(self, page: int) -> bool:
        """Cached, and nobody and nothing needs it now."""
        return page in self._idle

    def evict(self, page: int) -> None:
        """Evict an idle page; it is free."""
        self._forget(page)
        self._free.append(page)

    def pin(self, page: int) -> None:
        """A copy touches this page until unpin()."""
        self._pins[page] = self._pins.get(page, 0) + 1

    def unpin(self, page: int) -> None:
        left = self._pins[page] - 1
        if left:
            self._pins[page] = left
            return
        del self._pins[page]
        step = self._pending.get(page)
        if step is not None and step <= self._finished:
            del self._pending[page]
            self._settle((page,))

    def close_step(self, step: int) -> None:
        """Pages dropped from now on may be touched by this step."""
        assert step > self._closed, "steps come in growing order"
        self._closed = step

    def step_finished(self, step: int) -> None:
        """What was dropped before the next step was closed is reusable, unless a copy still touches it."""
        assert self._finished <= step <= self._closed
        self._finished = step
        if not self._pending:
            return
        due = []
        for page, dropped in self._pending.items():
            if dropped > step:
                break
            if page not in self._pins:
                due.append(page)
        for page in due:
            del self._pending[page]
        self._settle(due)

    def _forget(self, page: int) -> None:
        del self._idle[page]
        if self.below is not None:
            self.below.keep(page, self._index.entry(page))
        self._index.remove(page)
        self.num_evicted += 1

    def _settle(self, pages: Sequence[int]) -> None:
        """Nobody holds these and nothing touches them any more."""
        index = self._index
        if not len(index):
            self._free += pages
            return
        for page in pages:
            if page in index:
                self._idle[page] = None
            else:
                self._free.append(page)

    def _victim(self) -> int:
        page = next(iter(self._idle))
        entry = self._index.entry(page)
        if not self._leaf_first[entry.group] or not self._index.follows(entry.group, entry.digest):
            return page
        # A follower is nearly always older than what it follows, so this seldom turns once.
        while self._index.has_children(page):
            child = next((c for c in self._index.children(page) if c in self._idle), None)
            if child is None:
                break
            page = child
        return page

    def check(self, refs: Counter[int], pins: Counter[int], indexed: Iterable[int]) -> None:
        """Compare with the references and pins that the tables and tickets imply."""
        assert self.refs[NULL_PAGE] == 0 and refs[NULL_PAGE] == 0
        held = {page: num for page, num in enumerate(self.refs) if num}
        assert held == dict(refs), "reference counts are not the tables'"
        assert self._pins == dict(pins), "pins are not the outstanding copies'"
        places = [*held, *self._free, *self._idle, *self._pending]
        assert sorted(places) == list(range(1, self.num_pages)), "a page is lost, or in two places"
        indexed_pages = set(indexed)
        assert not indexed_pages & set(self._free) and set(self._idle) <= indexed_pages
        assert not set(self._pins) & (set(self._free) | set(self._idle)), "a pinned page could be reused"
        assert list(self._pending.values()) == sorted(self._pending.values())
        assert all(step > self._finished or page in self._pins for page, step in self._pending.items())
        if self._idle and self._leaf_first[self._index.entry(victim := self._victim()).group]:
            assert not any(child in self._idle for child in self._index.children(victim))
