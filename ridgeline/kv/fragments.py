"""How much of the handed-out pages is empty."""

from collections.abc import Collection, Sequence

from ridgeline.kv.kinds import Room
from ridgeline.kv.news import Fragmentation
from ridgeline.kv.pool import PagePool
from ridgeline.kv.seqtable import SeqTable


def fragmentation_of(rooms: Sequence[Room], tables: Collection[SeqTable], pool: PagePool,
                     page_bytes: int) -> Fragmentation:
    """The account of a paged arena. A page that several sequences share counts once, with what the fullest
    of them has in it; a page whose first tokens left a window counts as full up to its last."""
    empty: dict[int, int] = {}
    for table in tables:
        for room, group in zip(rooms, table.groups):
            size = room.page_tokens
            for index in range(table.num_computed // size if size else len(group.pages), len(group.pages)):
                unused = min(size, (index + 1) * size - table.num_computed)
                page = group.pages[index]
                empty[page] = min(empty.get(page, page_bytes), unused * page_bytes // size)
    internal = sum(empty.values())
    return Fragmentation(
        num_residents=sum(any(group.pages for group in table.groups) for table in tables),
        capacity_bytes=(pool.num_pages - 1) * page_bytes,
        used_bytes=pool.num_held * page_bytes - internal, internal_bytes=internal,
        free_bytes=pool.num_free * page_bytes, external_bytes=0)
