"""How a sequence begins: over the longest prefix of it that is cached, or over the pages of another."""


from ridgeline.kv.away import Away
from ridgeline.kv.kinds import Probe, Room, StateRoom, longest, shareable
from ridgeline.kv.pool import NULL_PAGE, PagePool
from ridgeline.kv.prefix import HashChain, PrefixIndex, Tokens
from ridgeline.kv.seqtable import GroupTable, SeqTable
from ridgeline.kv.snapshots import Snapshots
from ridgeline.kv.why import OFF, why_not_more


class Begin:
    """Makes the tables of new sequences, over the manager's pool and the indexes of device and host."""

    def __init__(self, rooms: tuple[Room, ...], pool: PagePool, indexes: tuple[PrefixIndex, ...],
                 snapshots: Snapshots, away: Away | None, *, block_tokens: int, caching: bool) -> None:
        self._rooms = rooms
        self._state_rooms = [room for room in rooms if isinstance(room, StateRoom)]
        self._entry_rooms = [room for room in rooms if not isinstance(room, StateRoom)]
        self._pool = pool
        self._indexes = indexes
        self._snapshots = snapshots
        self._away = away
        self._block_tokens = block_tokens
        self._caching = caching

    def open(self, seq: int, tokens: Tokens, salt: str, limit: int | None,
             end: int | None) -> SeqTable:
        """KVManager.open()."""
        hit, chain = 0, None
        marks: tuple[int, ...] = ()
        pages: list[list[int]] = [[] for _ in self._rooms]
        if self._caching:
            chain = HashChain(salt, self._block_tokens)
            probe = Probe(self._indexes, chain, tokens)
            hit, agreed = self._reach(probe, _most(tokens, limit))
            marks = self._snapshots.marks(len(tokens), hit, agreed)
            if hit:
                pages = [room.pages(probe, hit) for room in self._rooms]
        groups = [self._hold(room, found, hit) for room, found in zip(self._rooms, pages)]
        table = SeqTable(seq, chain, groups, hit, len(tokens), marks, end)
        if hit:
            self._snapshots.used(groups)
            table.num_host = max(room.tokens_of(group.away, hit) for room, group in zip(self._rooms, groups))
        return table

    def lookup(self, tokens: Tokens, salt: str, limit: int | None, *, host: bool) -> int:
        """KVManager.lookup()."""
        if not self._caching:
            return 0
        indexes = self._indexes if host else self._indexes[:1]
        return self._reach(Probe(indexes, HashChain(salt, self._block_tokens), tokens),
                           _most(tokens, limit))[0]

    def why_not_more(self, table: SeqTable, tokens: Tokens) -> str:
        """KVManager.why_not_more()."""
        if table.chain is None:
            return OFF
        return why_not_more(self._rooms, Probe(self._indexes, table.chain, tokens), hit=table.num_computed,
                            num_tokens=len(tokens), now=self._indexes[0].now)

    def fork(self, source: SeqTable, child: int, num_tokens: int) -> SeqTable:
        """KVManager.fork()."""
        index = self._indexes[0]
        shared = shareable(self._rooms, index, source, num_tokens)
        groups = []
        for room, table in zip(self._rooms, source.groups):
            pages = room.forked(index, source, table, shared)
            away = {at: page for at, page in table.away.items() if at < len(pages) and not pages[at]}
            groups.append(GroupTable(pages, min(table.first, len(pages)),
                                     min(table.num_indexed, room.written(shared)), away))
            self._refer(groups[-1])
        chain = source.chain.fork(shared // self._block_tokens) if source.chain is not None else None
        source.ready = source.num_computed
        return SeqTable(child, chain, groups, shared, 0, end=source.end)

    def _reach(self, probe: Probe, most: int) -> tuple[int, int]:
        """(tokens of a hit, tokens that all groups but the states would serve: 0 where there is no other).

        Those that look block by block come first: the states then look no further than they found.
        """
        agreed = longest(self._entry_rooms, probe, most) if self._entry_rooms else 0
        if not self._state_rooms:
            return agreed, agreed
        rooms = [*self._state_rooms, *self._entry_rooms]
        return longest(rooms, probe, agreed if self._entry_rooms else most), agreed

    def _hold(self, room: Room, found: list[int], hit: int) -> GroupTable:
        """The block table of a hit over these pages, as a Probe tells them."""
        away = {index: -page for index, page in enumerate(found) if page < 0}
        group = GroupTable([max(page, NULL_PAGE) for page in found], found.count(NULL_PAGE),
                           room.written(hit), away)
        self._refer(group)
        return group

    def _refer(self, group: GroupTable) -> None:
        """One more holder of all its pages."""
        for page in group.pages:
            if page:
                self._pool.hold(page)
        if self._away is not None:
            self._away.share(group)


def _most(tokens: Tokens, limit: int | None) -> int:
    """Most tokens that a hit may have: the last one is always computed."""
    most = len(tokens) - 1
    return max(0, most if limit is None else min(most, limit))
