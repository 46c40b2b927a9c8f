"""Sequences with pages in the host's arena: put away whole when they are preempted, or opened over a prefix
that only the host has cached. Either way the pages come back with the reservation that lets them run."""

from collections.abc import Sequence

from ridgeline.kv.copies import DEVICE, HOST, CopyQueue
from ridgeline.kv.kinds import Room
from ridgeline.kv.pool import NULL_PAGE, PagePool
from ridgeline.kv.prefix import Entry, PrefixIndex
from ridgeline.kv.seqtable import GroupTable, SeqTable
from ridgeline.kv.tier import HostTier


class Away:
    """Over the manager's pool, index and copies, and the host's tier."""

    def __init__(self, rooms: Sequence[Room], pool: PagePool, index: PrefixIndex, copies: CopyQueue,
                 tier: HostTier) -> None:
        self._rooms = rooms
        self._pool = pool
        self._index = index
        self._copies = copies
        self._tier = tier

    def put(self, table: SeqTable, num_tokens: int) -> bool:
        """Send the pages of positions < num_tokens to the host and give back all others; False, and nothing
        done, when the host has too little room, or when a step in flight has yet to fill one of them: should
        it break, nobody would know what was sent."""
        entries = [(group, index) for room, group in zip(self._rooms, table.groups)
                   for index in range(group.first, room.num_entries(num_tokens)) if group.pages[index]]
        if len(entries) > self._tier.pool.num_free or self._copies.under_way(
                DEVICE, [group.pages[index] for group, index in entries]):
            return False
        for group, index in entries:
            page = group.pages[index]
            entry = self._index.entry(page) if page in self._index else None
            group.away[index] = self._tier.put(page, entry)
        for room, group in zip(self._rooms, table.groups):
            for index in range(len(group.pages) - 1, group.first - 1, -1):
                if group.pages[index]:
                    self._pool.drop(group.pages[index])
                group.pages[index] = NULL_PAGE
            del group.pages[room.num_entries(num_tokens):]
            group.news.clear()
        table.reserved, table.ready = num_tokens, table.num_computed
        return True

    def num_pages(self, table: SeqTable) -> int:
        """Device pages that bringing it back takes at the most."""
        return sum(len(group.away) for group in table.groups)

    def under_way(self, table: SeqTable) -> bool:
        """Whether a plan in flight has yet to fill some of its host pages."""
        return self._copies.under_way(
            HOST, [page for group in table.groups for page in group.away.values()])

    def bring(self, table: SeqTable) -> None:
        """Back to the device: what is cached there is shared, the rest is copied with the next plan. The
        caller has made sure that there is room."""
        for room, group in zip(self._rooms, table.groups):
            for index, held in group.away.items():
                entry = _entry(room, table, index)
                twin = self._index.find(entry.group, entry.digest) if entry is not None else 0
                if twin:
                    self._pool.hold(twin)
                    group.pages[index] = twin
                else:
                    group.pages[index] = self._pool.take()
                    self._copies.add((HOST, held), (DEVICE, group.pages[index]), entry)
                self._tier.pool.drop(held)
                group.news.append(index)
            group.away.clear()

    def share(self, group: GroupTable) -> None:
        """A fork has taken over these entries too."""
        for page in group.away.values():
            self._tier.pool.hold(page)

    def drop(self, group: GroupTable, index: int) -> None:
        """An entry is needed no more."""
        self._tier.pool.drop(group.away.pop(index))


def _entry(room: Room, table: SeqTable, index: int) -> Entry | None:
    """What an entry can be cached as: a whole page of computed tokens that is never written again."""
    if table.chain is None or index >= room.written(table.num_computed):
        return None
    per_page = room.page_tokens // table.chain.block_tokens
    return table.chain.entry(room.number, index * per_page, (index + 1) * per_page)
