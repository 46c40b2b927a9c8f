"""The four cache kinds: one room each says what a group of that kind needs, drops, shares and reuses.

The manager runs every group through its room and knows no kind itself. A `Shared` layer has a description but
no group: CacheLayout resolves it to its owner, whose pages it reads, so the manager holds nothing for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from ridgeline.kv.pool import NULL_PAGE
from ridgeline.kv.prefix import HashChain, PrefixIndex, Tokens, encode
from ridgeline.kv.seqtable import GroupTable, SeqTable
from ridgeline.spec.cache import CacheGroup, Paged, State, Window

NEVER = 1 << 62


class Probe:
    """One token sequence held against the prefix indexes of the device and, behind it, the host. Hashes no
    further than it is asked about.

    A page is told as a positive number when the device has it, as a negative one when only the host does.
    """

    def __init__(self, indexes: Sequence[PrefixIndex], chain: HashChain, tokens: Tokens) -> None:
        self._indexes = indexes
        self._chain = chain
        self._tokens = tokens

    def digest(self, num_tokens: int) -> bytes:
        """The name of the first num_tokens tokens, a multiple of the chain's block."""
        num_blocks = num_tokens // self._chain.block_tokens
        self._chain.extend(self._tokens, num_blocks)
        return self._chain.digests[num_blocks]

    def full(self, group: int, end: int) -> int:
        """The cached page whose last token is at end - 1, or 0."""
        digest = self.digest(end)
        for sign, index in zip((1, -1), self._indexes):
            if page := index.find(group, digest):
                return sign * page
        return 0

    def part(self, group: int, start: int, end: int) -> tuple[int, int]:
        """The cached page from `start` on that agrees furthest with tokens [start, end), the device's among
        equals: (page, tokens), or (0, 0)."""
        digest, tokens = self.digest(start), encode(self._tokens[start:end])
        best, best_shared = 0, 0
        for sign, index in zip((1, -1), self._indexes):
            page, shared = index.nearest(group, digest, tokens)
            if shared > best_shared:
                best, best_shared = sign * page, shared
        return best, best_shared

    def follows(self, group: int, start: int) -> bool:
        """Whether anything that begins with the first `start` tokens is cached."""
        return any(index.follows(group, self.digest(start)) for index in self._indexes)

    def gone_s(self, group: int, end: int) -> float | None:
        """When the page whose last token is at end - 1 was cached last; None where nobody remembers one."""
        times = [index.gone_s(group, self.digest(end)) for index in self._indexes]
        return max((at for at in times if at is not None), default=None)


class Room(ABC):
    """Rules of one cache group. `leaf_first`: a cached page is worthless without the pages before it.

    spaces: of the prefix index, one for each page that is named by one prefix (a state has several).
    """

    leaf_first = False

    def __init__(self, group: CacheGroup, spaces: tuple[int, ...]) -> None:
        self.number = spaces[0]
        self.spaces = spaces
        self.group = group
        self.page_tokens = group.tokens_per_page

    @abstractmethod
    def num_entries(self, num_tokens: int) -> int:
        """Block-table entries that positions < num_tokens need."""

    @abstractmethod
    def capacity(self, num_entries: int) -> int:
        """Tokens that so many entries can hold."""

    @abstractmethod
    def most_pages(self, num_tokens: int) -> int:
        """Pages that one sequence needs at once to grow to num_tokens tokens in small steps."""

    @abstractmethod
    def written(self, num_computed: int) -> int:
        """Index of the first entry that a step after num_computed tokens writes."""

    @abstractmethod
    def first_needed(self, num_computed: int) -> int:
        """Index of the first entry that the query at position num_computed - 1, or any later one, reads or
        writes."""

    @abstractmethod
    def next_drop(self, first: int) -> int:
        """The num_computed at which first_needed() exceeds `first`."""

    @abstractmethod
    def longest(self, probe: Probe, most: int) -> int:
        """The longest prefix of at most `most` tokens that this group can serve from the index, exactly."""

    @abstractmethod
    def pages(self, probe: Probe, num_tokens: int) -> list[int]:
        """The table entries that serve a prefix which longest() allowed; 0 where none is needed."""

    @abstractmethod
    def shareable(self, index: PrefixIndex, parent: SeqTable, table: GroupTable, num_tokens: int) -> int:
        """Of the parent's first num_tokens tokens, how many a fork can share, exactly."""

    def tokens_of(self, entries: Iterable[int], num_tokens: int) -> int:
        """How many of the first num_tokens tokens these entries of a table hold."""
        size = self.page_tokens
        if not size:
            return num_tokens if any(True for _ in entries) else 0
        return sum(min(size, num_tokens - index * size) for index in entries)

    def forked(self, index: PrefixIndex, parent: SeqTable, table: GroupTable, num_tokens: int) -> list[int]:
        """The table entries of a fork that shares num_tokens tokens, which shareable() allowed."""
        return table.pages[:self.num_entries(num_tokens)]


class PagedRoom(Room):
    """Every entry is kept for the whole sequence, so pages are useful from the front only."""

    leaf_first = True

    def num_entries(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_tokens)

    def capacity(self, num_entries: int) -> int:
        return num_entries * self.page_tokens

    def most_pages(self, num_tokens: int) -> int:
        return self.num_entries(num_tokens)

    def written(self, num_computed: int) -> int:
        return num_computed // self.page_tokens

    def first_needed(self, num_computed: int) -> int:
        return 0

    def next_drop(self, first: int) -> int:
        return NEVER

    def longest(self, probe: Probe, most: int) -> int:
        size, end = self.page_tokens, 0
        while end + size <= most and probe.full(self.number, end + size):
            end += size
        if end < most:
            end += probe.part(self.number, end, min(end + size, most))[1]
        return self._whole_entries(end)

    def pages(self, probe: Probe, num_tokens: int) -> list[int]:
        return _serving(probe, self, 0, num_tokens)

    def shareable(self, index: PrefixIndex, parent: SeqTable, table: GroupTable, num_tokens: int) -> int:
        return self._whole_entries(num_tokens)

    def _whole_entries(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self.group.tokens_per_entry


class WindowRoom(PagedRoom):
    """Entries matter while a query can see them: key s for the queries s <= t < s + window_tokens.

    A prefix needs only the pages that its next query sees, whatever became of those before. Entries are held
    for the query at num_computed - 1 too, one more than the next step reads: a fork at the last computed
    token stays exact.
    """

    leaf_first = False

    def __init__(self, group: CacheGroup, spaces: tuple[int, ...]) -> None:
        super().__init__(group, spaces)
        assert group.window_tokens is not None
        self._window = group.window_tokens

    def most_pages(self, num_tokens: int) -> int:
        # positions num_computed - window .. num_computed while the next token is written
        return min(self.num_entries(num_tokens), -(-self._window // self.page_tokens) + 1)

    def first_needed(self, num_computed: int) -> int:
        return self._first_seen(num_computed - 1)

    def next_drop(self, first: int) -> int:
        return (first + 1) * self.page_tokens + self._window

    def longest(self, probe: Probe, most: int) -> int:
        end, index = most, (most - 1) // self.page_tokens
        while end > 0 and index >= self._first_seen(end):
            start = index * self.page_tokens
            stop = min(start + self.page_tokens, end)
            if stop - start < self.page_tokens or not probe.full(self.number, stop):
                shared = probe.part(self.number, start, stop)[1]
                if start + shared < stop:
                    end = start + shared
            index -= 1
        return end

    def pages(self, probe: Probe, num_tokens: int) -> list[int]:
        return _serving(probe, self, self._first_seen(num_tokens), num_tokens)

    def shareable(self, index: PrefixIndex, parent: SeqTable, table: GroupTable, num_tokens: int) -> int:
        return num_tokens if table.first <= self._first_seen(num_tokens) else 0

    def _first_seen(self, query: int) -> int:
        return max(0, (query - self._window + 1) // self.page_tokens)


class StateRoom(Room):
    """A fixed number of pages a sequence, rewritten at each step.

    What they hold belongs to one position only, so a prefix is reused up to the last snapshot that was taken
    within it (snapshots.py), and what follows is computed again. A fork shares a snapshot of its parent's, or
    its state itself where that has not run ahead.
    """

    def num_entries(self, num_tokens: int) -> int:
        return self.group.state_pages if num_tokens > 0 else 0

    def capacity(self, num_entries: int) -> int:
        return NEVER if num_entries else 0

    def most_pages(self, num_tokens: int) -> int:
        return self.num_entries(num_tokens)

    def written(self, num_computed: int) -> int:
        return 0

    def first_needed(self, num_computed: int) -> int:
        return 0

    def next_drop(self, first: int) -> int:
        return NEVER

    def longest(self, probe: Probe, most: int) -> int:
        end = most - most % self.group.snapshot_tokens
        while end and not all(probe.full(space, end) for space in self.spaces):
            end -= self.group.snapshot_tokens
        return end

    def pages(self, probe: Probe, num_tokens: int) -> list[int]:
        return [probe.full(space, num_tokens) for space in self.spaces] if num_tokens else []

    def shareable(self, index: PrefixIndex, parent: SeqTable, table: GroupTable, num_tokens: int) -> int:
        if _rests(parent, num_tokens) or parent.chain is None:
            return num_tokens if _rests(parent, num_tokens) else 0
        named = len(parent.chain.blocks) * parent.chain.block_tokens
        end = min(num_tokens, named) // self.group.snapshot_tokens * self.group.snapshot_tokens
        while end and not all(self._kept(index, parent.chain, end)):
            end -= self.group.snapshot_tokens
        return end

    def forked(self, index: PrefixIndex, parent: SeqTable, table: GroupTable, num_tokens: int) -> list[int]:
        if _rests(parent, num_tokens) or parent.chain is None or not num_tokens:
            return table.pages[:self.num_entries(num_tokens)]
        return self._kept(index, parent.chain, num_tokens)

    def _kept(self, index: PrefixIndex, chain: HashChain, num_tokens: int) -> list[int]:
        digest = chain.digests[num_tokens // chain.block_tokens]
        return [index.find(space, digest) for space in self.spaces]


def _rests(table: SeqTable, num_tokens: int) -> bool:
    """Whether its state stands at num_tokens and nothing that is reserved moves it on."""
    return table.reserved == table.num_computed == num_tokens


def _serving(probe: Probe, room: PagedRoom, first: int, num_tokens: int) -> list[int]:
    """Pages of the entries from `first` on that hold tokens < num_tokens, null ones before."""
    size = room.page_tokens
    found = [NULL_PAGE] * min(first, room.num_entries(num_tokens))
    for index in range(len(found), num_tokens // size):
        found.append(probe.full(room.number, (index + 1) * size))
    if len(found) < room.num_entries(num_tokens):
        found.append(probe.part(room.number, len(found) * size, num_tokens)[0])
    assert NULL_PAGE not in found[first:]
    return found


_ROOMS: dict[type, type[Room]] = {Paged: PagedRoom, Window: WindowRoom, State: StateRoom}


def rooms_of(groups: Sequence[CacheGroup]) -> tuple[Room, ...]:
    """The room of each group of a layout. Each has its number as its first space of the index."""
    rooms, extra = [], len(groups)
    for number, group in enumerate(groups):
        more = max(0, group.state_pages - 1)
        rooms.append(_ROOMS[group.kind](group, (number, *range(extra, extra + more))))
        extra += more
    return tuple(rooms)


def longest(rooms: Sequence[Room], probe: Probe, most: int) -> int:
    """The longest prefix that every group can serve: ask around until nobody cuts it any more."""
    if len(rooms) == 1:
        return rooms[0].longest(probe, most)
    hit, before = most, -1
    while hit != before:
        before = hit
        for room in rooms:
            hit = room.longest(probe, hit)
    return hit


def shareable(rooms: Sequence[Room], index: PrefixIndex, parent: SeqTable, num_tokens: int) -> int:
    """Of the parent's first num_tokens tokens, how many a fork can share in every group."""
    shared, before = num_tokens, -1
    while shared != before:
        before = shared
        for room, table in zip(rooms, parent.groups):
            shared = room.shareable(index, parent, table, shared)
    return shared
