"""Making positions writable: new pages at a table's end, copy-on-write of shared ones and pages back from the
host, all or nothing."""

from collections.abc import Sequence

from ridgeline.kv.away import Away
from ridgeline.kv.copies import DEVICE, CopyQueue
from ridgeline.kv.kinds import NEVER, Room
from ridgeline.kv.pool import PagePool
from ridgeline.kv.prefix import PrefixIndex
from ridgeline.kv.seqtable import GroupTable, SeqTable

Shared = list[tuple[GroupTable, int, bool]]


class Writable:
    """The slow half of a reservation, over the manager's pool, index and copies."""

    def __init__(self, rooms: Sequence[Room], pool: PagePool, index: PrefixIndex, copies: CopyQueue,
                 away: Away | None) -> None:
        self._rooms = rooms
        self._pool = pool
        self._index = index
        self._copies = copies
        self._away = away

    def spare(self, table: SeqTable, num_tokens: int) -> int:
        """Free pages that growing to num_tokens would leave, negative when they do not suffice."""
        return self._left(table, self._shared(table, num_tokens), self._missing(table, num_tokens))

    def grow(self, table: SeqTable, num_tokens: int) -> bool:
        """Give the positions [num_computed, num_tokens) pages of their own, and bring back what is away;
        False when there are too few pages."""
        shared, missing = self._shared(table, num_tokens), self._missing(table, num_tokens)
        left = self._left(table, shared, missing)
        if left < 0:
            return False
        for group, index, sole in shared:
            if sole and left == 0:
                self._index.remove(group.pages[index])  # without a page to spare the cached one gives way
                continue
            left -= sole
            source, group.pages[index] = group.pages[index], self._pool.take()
            self._copies.add((DEVICE, source), (DEVICE, group.pages[index]))
            self._pool.drop(source)
            group.news.append(index)
        if self._away is not None:
            self._away.bring(table)
        table.ready = NEVER
        for room, group, num in zip(self._rooms, table.groups, missing):
            if num > 0:
                first = len(group.pages)
                group.pages += self._pool.take_all(num)
                group.news += range(first, first + num)
            capacity = room.capacity(len(group.pages))
            if capacity < table.ready:
                table.ready = capacity
        return True

    def _shared(self, table: SeqTable, num_tokens: int) -> Shared:
        """Entries that writing [num_computed, num_tokens) must not touch: (group, index, sole holder).

        A page is shared when somebody else holds it or the index promises its content.
        """
        found: Shared = []
        if table.ready > table.num_computed:
            return found
        refs = self._pool.refs
        for room, group in zip(self._rooms, table.groups):
            stop = min(len(group.pages), room.num_entries(num_tokens))
            for index in range(room.written(table.num_computed), stop):
                page = group.pages[index]
                if page and (refs[page] > 1 or page in self._index):
                    found.append((group, index, refs[page] == 1))
        return found

    def _missing(self, table: SeqTable, num_tokens: int) -> list[int]:
        """Entries of each group that writing up to num_tokens adds to its table; not positive for none."""
        return [room.num_entries(num_tokens) - len(group.pages)
                for room, group in zip(self._rooms, table.groups)]

    def _left(self, table: SeqTable, shared: Shared, missing: Sequence[int]) -> int:
        """spare(); a cached page that nobody else holds counts as needing none: it can be taken over."""
        left = self._pool.num_free - (self._away.num_pages(table) if self._away is not None else 0)
        for _, _, sole in shared:
            left -= not sole
        for num in missing:
            if num > 0:
                left -= num
        return left
