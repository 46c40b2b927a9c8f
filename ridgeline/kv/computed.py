"""What becomes of pages once their tokens are computed: full ones enter the prefix index, those that left a
window are given back, snapshots of states are kept."""

from ridgeline.kv.away import Away
from ridgeline.kv.kinds import NEVER, Room, StateRoom
from ridgeline.kv.pool import NULL_PAGE, PagePool
from ridgeline.kv.prefix import HashChain, PrefixIndex, Tokens
from ridgeline.kv.seqtable import GroupTable, SeqTable
from ridgeline.kv.snapshots import Snapshots


class Computed:
    """The slow half of a commit, over the manager's pool, index and snapshots."""

    def __init__(self, rooms: tuple[Room, ...], pool: PagePool, index: PrefixIndex, snapshots: Snapshots,
                 away: Away | None, *, block_tokens: int) -> None:
        self._rooms = rooms
        self._any_state = any(isinstance(room, StateRoom) for room in rooms)
        self._pool = pool
        self._index = index
        self._snapshots = snapshots
        self._away = away
        self._block_tokens = block_tokens

    def settle(self, table: SeqTable, tokens: Tokens) -> bool:
        """Index what is full, drop what left a window, note when to come back; whether the block table
        changed."""
        num_computed, chain, wake, changed = table.num_computed, table.chain, NEVER, False
        for room, group in zip(self._rooms, table.groups):
            if chain is not None and room.page_tokens:
                full = num_computed // room.page_tokens
                if full > group.num_indexed:
                    self._offer(chain, room, group, tokens, full)
                due = (full + 1) * room.page_tokens
                if due < wake:
                    wake = due
            leave = room.next_drop(group.first)
            if leave <= num_computed:
                self._leave(group, room.first_needed(num_computed))
                changed, leave = True, room.next_drop(group.first)
            if leave < wake:
                wake = leave
        if chain is not None and self._any_state:
            chain.extend(tokens, num_computed // self._block_tokens)  # for a fork
            wake = min(wake, (num_computed // self._block_tokens + 1) * self._block_tokens)
        table.wake = min(wake, self._snapshots.settle(table)) if table.snapshots else wake
        return changed

    def touch_twin(self, table: SeqTable, room: Room, index: int) -> None:
        """A sequence with a page of its own for tokens that another page caches: that page counts as used by
        it too, lest it be older than what follows it."""
        assert table.chain is not None
        num_blocks = (index + 1) * room.page_tokens // self._block_tokens
        twin = self._index.find(room.number, table.chain.digests[num_blocks])
        if twin:
            self._pool.touch(twin)

    def _offer(self, chain: HashChain, room: Room, group: GroupTable, tokens: Tokens, full: int) -> None:
        """Index the pages up to entry `full`, except where the same tokens are cached already."""
        per_page = room.page_tokens // chain.block_tokens
        chain.extend(tokens, full * per_page)
        add, entry, number, pages, away = self._index.add, chain.entry, room.number, group.pages, group.away
        for index in range(group.num_indexed, full):
            if index not in away:  # else findable once it is back
                add(pages[index], entry(number, index * per_page, (index + 1) * per_page))
        group.num_indexed = full

    def _leave(self, group: GroupTable, first: int) -> None:
        """Give back the pages before entry `first`."""
        for index in range(group.first, first):
            if index in group.away:
                assert self._away is not None
                self._away.drop(group, index)
                continue
            self._pool.drop(group.pages[index])
            group.pages[index] = NULL_PAGE
        group.news.extend(range(group.first, first))
        group.first = first
