"""Page copies under tickets: queued for the next plan, then under way, and what they fill pinned until they
are done.

The copies of a plan run in order and before its forward. So a device page whose content goes to the host may
be handed out at once: whatever is written into it comes later. Its other end, and both ends of every other
copy, stay pinned until the ticket is back.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ridgeline.kv.news import NO_COPIES, CopyNews
from ridgeline.kv.pool import PagePool
from ridgeline.kv.prefix import Entry, PrefixIndex

DEVICE, HOST = 0, 1

Place = tuple[int, int]  # (space, page)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One page to be copied. entry: what the target is to be cached as once it is there."""

    source: Place
    target: Place
    ticket: int
    entry: Entry | None = None

    @property
    def pinned(self) -> tuple[Place, ...]:
        if (self.source[0], self.target[0]) == (DEVICE, HOST):
            return (self.target,)
        return (self.source, self.target)


class CopyQueue:
    """The copies of one manager, over the pool and index of each space.

    Counts, of copies not cancelled: num_copied within the device's arena, num_out to the host's, num_back
    from there.
    """

    def __init__(self, spaces: Sequence[tuple[PagePool, PrefixIndex]]) -> None:
        self._pools = [pool for pool, _ in spaces]
        self._indexes = [index for _, index in spaces]
        self._counts: Counter[tuple[int, int]] = Counter()
        self._queued: list[Copy] = []
        self._open: dict[int, Copy] = {}  # queued or under way
        self._next_ticket = 0

    @property
    def num_copied(self) -> int:
        return self._counts[DEVICE, DEVICE]

    @property
    def num_out(self) -> int:
        return self._counts[DEVICE, HOST]

    @property
    def num_back(self) -> int:
        return self._counts[HOST, DEVICE]

    def add(self, source: Place, target: Place, entry: Entry | None = None) -> None:
        """Copy with the next plan."""
        copy = Copy(source=source, target=target, ticket=self._next_ticket, entry=entry)
        self._next_ticket += 1
        self._counts[source[0], target[0]] += 1
        for space, page in copy.pinned:
            self._pools[space].pin(page)
        self._queued.append(copy)
        self._open[copy.ticket] = copy

    def take(self) -> CopyNews:
        """The queued copies, for the plan that is being closed."""
        if not self._queued:
            return NO_COPIES
        queued, self._queued = self._queued, []
        return CopyNews(
            source_space=[c.source[0] for c in queued], source=[c.source[1] for c in queued],
            target_space=[c.target[0] for c in queued], target=[c.target[1] for c in queued],
            ticket=[c.ticket for c in queued])

    def cancel_unneeded(self) -> None:
        """Drop queued copies whose target nobody holds or is to find, and no later copy reads: from the last,
        so a chain goes whole. A page brought back for nobody stays where it was."""
        kept: list[Copy] = []
        read: set[Place] = set()
        for copy in reversed(self._queued):
            space, page = copy.target
            to_find = space == HOST and copy.entry is not None
            if self._pools[space].refs[page] or copy.target in read or to_find:
                kept.append(copy)
                read.add(copy.source)
            else:
                self._counts[copy.source[0], space] -= 1
                self._close(copy)
        self._queued = kept[::-1]

    def done(self, tickets: Iterable[int]) -> None:
        """These copies have run: what they brought can be found, and their pages are pinned no more."""
        for ticket in tickets:
            copy = self._open[int(ticket)]
            space, page = copy.target
            if copy.entry is not None and page not in self._indexes[space]:
                self._indexes[space].add(page, copy.entry)
            self._close(copy)

    def lost(self, tickets: Iterable[int]) -> set[Place]:
        """These copies never ran; the places that stay without content, those of later copies from there
        too. What was cached in one meanwhile is forgotten."""
        copies = [self._open[int(ticket)] for ticket in tickets]
        last = max((copy.ticket for copy in copies), default=-1)
        lost = {copy.target for copy in copies}
        for ticket, copy in self._open.items():
            if ticket > last and copy.source in lost:
                lost.add(copy.target)
                self._open[ticket] = replace(copy, entry=None)
        self._queued = [self._open[copy.ticket] for copy in self._queued]
        for space, page in lost:
            if page in self._indexes[space]:
                self._indexes[space].remove(page)
        for copy in copies:
            self._close(copy)
        return lost

    def under_way(self, space: int, pages: Iterable[int]) -> bool:
        """Whether a plan in flight has yet to fill one of these pages."""
        flying = self._open.keys() - {copy.ticket for copy in self._queued}
        targets = {self._open[ticket].target for ticket in flying}
        return bool(targets) and any((space, page) in targets for page in pages)

    def pins(self, space: int) -> Counter[int]:
        """Page -> pins, from the open tickets alone."""
        return Counter(page for copy in self._open.values() for at, page in copy.pinned if at == space)

    def _close(self, copy: Copy) -> None:
        del self._open[copy.ticket]
        for space, page in copy.pinned:
            self._pools[space].unpin(page)

    def check(self) -> None:
        """Queued copies have tickets, nothing is copied onto the null page, and nobody finds what is not
        there yet."""
        assert all(self._open[copy.ticket] is copy for copy in self._queued)
        for copy in self._open.values():
            assert copy.source[1] and copy.target[1] and copy.source != copy.target
            assert copy.entry is None or copy.target[1] not in self._indexes[copy.target[0]]
