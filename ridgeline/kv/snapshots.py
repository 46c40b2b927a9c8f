"""Snapshots of recurrent states: where they are taken, and which are kept.

A state is rewritten at each step, so a prefix can be shared only where a copy of it was kept. At a mark (a
whole block) the sequence goes on in new pages and leaves the old ones, which hold the state of that position,
to the prefix index; like any cached page they are evicted least recently used first, and beyond a number of
snapshots the oldest goes. Knows no step and no row: the scheduler cuts its chunks at the marks and says when
one is reached.
"""

from collections import OrderedDict
from collections.abc import Sequence

from ridgeline.kv.copies import DEVICE, CopyQueue
from ridgeline.kv.kinds import NEVER, Room, StateRoom
from ridgeline.kv.pool import PagePool
from ridgeline.kv.prefix import HashChain, PrefixIndex, Tokens
from ridgeline.kv.seqtable import GroupTable, SeqTable


class Snapshots:
    """The snapshots of one manager, over its pool, index and copies.

    stride: tokens between those taken along a sequence, 0 for none (a multiple of the block). most: how many
    stay cached, None for as many as other pages leave room for.
    """

    def __init__(self, rooms: Sequence[Room], pool: PagePool, index: PrefixIndex, copies: CopyQueue, *,
                 block_tokens: int, stride: int, most: int | None) -> None:
        self._rooms = rooms
        self._spaces = [space for room in rooms if isinstance(room, StateRoom) for space in room.spaces]
        self._pool = pool
        self._index = index
        self._copies = copies
        self._block_tokens = block_tokens
        self._stride = stride
        self._most = most
        self._heads: OrderedDict[int, None] = OrderedDict()  # first page of each, least recently used first
        assert stride % block_tokens == 0

    def marks(self, num_tokens: int, hit: int, agreed: int) -> tuple[int, ...]:
        """Where a new sequence of num_tokens known ones is to leave snapshots, beside the strides.

        Before its last token, for whoever repeats or continues it; and where it parts from what is cached
        (agreed), when the next one to part there would find blocks but no state (hit).
        """
        ends = ((num_tokens - 1) // self._block_tokens, agreed // self._block_tokens)
        return tuple(sorted({end * self._block_tokens for end in ends if end * self._block_tokens > hit}))

    def next_mark(self, table: SeqTable, position: int) -> int:
        """The first mark past a position, NEVER without one."""
        if table.chain is None or not self._spaces:
            return NEVER
        found = min((mark for mark in table.marks if mark > position), default=NEVER)
        return min(found, (position // self._stride + 1) * self._stride) if self._stride else found

    def take(self, table: SeqTable, position: int, tokens: Tokens) -> None:
        """Keep the state at `position`, which every step so far reaches and none passes: the sequence goes on
        in a copy. Nothing happens when it is cached already, or when there are no free pages for the copy."""
        chain = table.chain
        assert chain is not None and position % self._block_tokens == 0
        chain.extend(tokens, position // self._block_tokens)
        if self._find(chain, position) or self._pool.num_free < len(self._spaces):
            return
        kept = []
        for room, group in zip(self._rooms, table.groups):
            if isinstance(room, StateRoom):
                kept += [(space, self._renew(group, place)) for place, space in enumerate(room.spaces)]
        table.snapshots.append((position, kept))
        table.wake = min(table.wake, position)
        self.settle(table)

    def settle(self, table: SeqTable) -> int:
        """Cache the snapshots of what is computed; the position of the next one, NEVER without."""
        chain = table.chain
        while table.snapshots and table.snapshots[0][0] <= table.num_computed:
            position, kept = table.snapshots.pop(0)
            assert chain is not None
            last = position // self._block_tokens
            for space, page in kept:
                if self._index.add(page, chain.entry(space, last - 1, last)) and space == self._spaces[0]:
                    self._heads[page] = None
                    self._heads.move_to_end(page)
                self._pool.drop(page)
            self._keep_few()
        return table.snapshots[0][0] if table.snapshots else NEVER

    def used(self, groups: Sequence[GroupTable]) -> None:
        """A sequence begins in these cached states."""
        for room, group in zip(self._rooms, groups):
            if isinstance(room, StateRoom) and group.pages and group.pages[0] in self._heads:
                self._heads.move_to_end(group.pages[0])

    def release(self, table: SeqTable) -> None:
        """Let go of what was never computed."""
        for _, kept in table.snapshots:
            for _, page in kept:
                self._pool.drop(page)
        table.snapshots = []

    def _renew(self, group: GroupTable, place: int) -> int:
        """A copy takes the page's place; the page."""
        page, group.pages[place] = group.pages[place], self._pool.take()
        self._copies.add((DEVICE, page), (DEVICE, group.pages[place]))
        group.news.append(place)
        return page

    def _find(self, chain: HashChain, position: int) -> list[int]:
        """The pages of the snapshot of a position, [] unless all are cached."""
        digest = chain.digests[position // self._block_tokens]
        found = [self._index.find(space, digest) for space in self._spaces]
        return found if all(found) else []

    def _keep_few(self) -> None:
        """Evict the oldest beyond the number that may stay; one that is in use stays."""
        if self._most is None:
            return
        head = self._spaces[0]
        for page in list(self._heads):
            if page not in self._index or self._index.entry(page).group != head:
                del self._heads[page]  # evicted for want of pages
        for page in list(self._heads):
            if len(self._heads) <= self._most:
                return
            digest = self._index.entry(page).digest
            pages = [found for space in self._spaces if (found := self._index.find(space, digest))]
            if all(self._pool.is_idle(found) for found in pages):
                for found in pages:
                    self._pool.evict(found)
                del self._heads[page]
