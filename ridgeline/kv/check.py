"""What must hold between tables, pages and index after every action: re-derived from scratch, for tests and
debug."""

from collections import Counter
from collections.abc import Collection, Sequence

from ridgeline.kv.copies import DEVICE, HOST, CopyQueue
from ridgeline.kv.kinds import Room
from ridgeline.kv.pool import NULL_PAGE, PagePool
from ridgeline.kv.prefix import PrefixIndex
from ridgeline.kv.seqtable import GroupTable, SeqTable
from ridgeline.kv.tier import HostTier


def check_all(rooms: Sequence[Room], tables: Collection[SeqTable], pool: PagePool, index: PrefixIndex,
              copies: CopyQueue, tier: HostTier | None, block_tokens: int) -> None:
    """AssertionError unless references are the tables', pins the tickets', and every shared page is left
    unwritten."""
    refs: Counter[int] = Counter()
    for table in tables:
        for room, group in zip(rooms, table.groups, strict=True):
            refs.update(page for page in group.pages if page != NULL_PAGE)
            _check_group(room, table, group, pool, index)
        refs.update(page for _, kept in table.snapshots for _, page in kept)
        assert table.end is None or table.reserved <= -(-table.end // block_tokens) * block_tokens
        positions = [position for position, _ in table.snapshots]
        assert positions == sorted(positions)
        assert all(table.num_computed < position <= table.reserved for position in positions)
    indexed = index.pages()
    pool.check(refs, copies.pins(DEVICE), indexed)
    index.check(block_tokens)
    if tier is not None:
        held = Counter(page for table in tables for group in table.groups for page in group.away.values())
        tier.pool.check(held, copies.pins(HOST), tier.index.pages())
        tier.index.check(block_tokens)
    copies.check()


def _check_group(room: Room, table: SeqTable, group: GroupTable, pool: PagePool, index: PrefixIndex) -> None:
    pages, computed = group.pages, table.num_computed
    assert all(page == NULL_PAGE for page in pages[: group.first])
    here = [page for index, page in enumerate(pages) if index >= group.first and index not in group.away]
    assert NULL_PAGE not in here, "a page that is still needed is gone"
    assert not any(pages[index] for index in group.away) and all(i >= group.first for i in group.away)
    assert len(set(here)) == len(here), "one page twice in a table"
    assert len(pages) >= room.num_entries(max(computed, table.reserved)), "reserved positions without a page"
    assert group.first <= room.first_needed(computed + 1), "dropped too early"
    if table.wake > computed:
        assert group.first >= room.first_needed(computed), "kept too long"
    if table.ready > computed:
        own = pages[room.written(computed) :]
        assert all(pool.refs[page] == 1 and page not in index for page in own), "a shared page is written"
    if table.chain is None:
        return
    if table.wake > computed:
        assert group.num_indexed == room.written(computed)
    per_page = room.page_tokens // table.chain.block_tokens
    for number, page in enumerate(pages[: room.written(computed)]):
        if page in index:
            entry = index.entry(page)
            name = table.chain.digests[(number + 1) * per_page]
            assert (entry.group, entry.digest) == (room.number, name), "a table holds a page of another name"
