"""What the manager keeps for one sequence: a block table a cache group, and how far it is. Plain state, no
rules."""

from ridgeline.kv.prefix import HashChain


class GroupTable:
    """One sequence's block table of one group.

    pages: page of each index, 0 before `first` (left the window, or never needed) and where the host has it:
    away, index -> host page, held. num_indexed: pages already
    offered to the prefix index. news: indices that no plan has carried yet (repeats are harmless).
    """

    __slots__ = ("away", "first", "news", "num_indexed", "pages")

    def __init__(self, pages: list[int], first: int, num_indexed: int, away: dict[int, int]) -> None:
        self.pages = pages
        self.away = away
        self.first = first
        self.num_indexed = num_indexed
        self.news = list(range(len(pages)))


class SeqTable:
    """One sequence.

    num_computed: positions below hold what the tokens say. reserved: the furthest reserve(). ready: positions
    in [num_computed, ready) have pages of its own in every group, so a reserve() up to there has nothing to
    do. wake: the num_computed at which commit() has something to do. num_query: tokens to count in the
    statistics once it runs; num_host: those of the hit that the host holds. marks: positions whose recurrent
    states are to be kept. end: positions that it will ever have, None where nobody said. lost: some of what
    is away never arrived there. snapshots: states that are kept, until they are computed: (position, [(space
    of the index, page)]), in order.
    """

    __slots__ = ("chain", "end", "groups", "lost", "marks", "num_computed", "num_host", "num_query", "ready",
                 "reserved", "seq", "snapshots", "wake")

    def __init__(self, seq: int, chain: HashChain | None, groups: list[GroupTable], num_computed: int,
                 num_query: int, marks: tuple[int, ...] = (), end: int | None = None) -> None:
        self.seq = seq
        self.chain = chain
        self.groups = groups
        self.num_computed = num_computed
        self.reserved = num_computed
        self.ready = num_computed
        self.wake = 0
        self.num_query = num_query
        self.marks = marks
        self.end = end
        self.num_host = 0
        self.lost = False
        self.snapshots: list[tuple[int, list[tuple[int, int]]]] = []
