"""The baseline that paging replaced: each sequence gets one run of neighbouring pages for as many tokens as
it may ever have, first fit, and keeps it to its end. Nothing is shared and nothing grows.

For comparison only, but a whole manager: its block tables name the run's pages, so any executor runs on it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.kv.kinds import NEVER, rooms_of
from ridgeline.kv.news import NO_COPIES, CacheStats, Fragmentation, StepNews, TableNews
from ridgeline.kv.prefix import Tokens
from ridgeline.spec.cache import CacheLayout, State


@dataclass(slots=True, kw_only=True)
class _Seq:
    """end: tokens that it may have. start: its first page, 0 while it has none."""

    end: int
    num_known: int
    start: int = 0
    num_pages: int = 0
    num_computed: int = 0


@dataclass(slots=True)
class Runs:
    """Free runs (first page, pages) in order, never adjacent; pages of the arena are 1 to num_pages - 1."""

    num_pages: int
    free: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [(1, self.num_pages - 1)]

    def take(self, size: int) -> int:
        """The first page of the first run that is long enough, 0 without one."""
        for place, (start, length) in enumerate(self.free):
            if length >= size:
                self.free[place:place + 1] = [(start + size, length - size)] if length > size else []
                return start
        return 0

    def give(self, start: int, size: int) -> None:
        """A run is free again, joined with its neighbours."""
        place = bisect_left(self.free, (start, 0))
        if place < len(self.free) and self.free[place][0] == start + size:
            size += self.free.pop(place)[1]
        if place and sum(self.free[place - 1]) == start:
            before = self.free.pop(place - 1)
            start, size = before[0], before[1] + size
        insort(self.free, (start, size))

    @property
    def total(self) -> int:
        return sum(length for _, length in self.free)

    @property
    def largest(self) -> int:
        return max((length for _, length in self.free), default=0)


class ContiguousManager:
    """kv.interface.Manager over runs of pages. Misuse is an AssertionError, as with KVManager."""

    grows, follows = False, True

    def __init__(self, layout: CacheLayout, num_pages: int, *, reserve_tokens: int | None = None) -> None:
        """num_pages counts the null page. reserve_tokens: what every sequence gets room for (the context);
        None for its own prompt and the most that it may answer."""
        self._layout = layout
        self._rooms = rooms_of(layout.groups)
        self._num_pages = num_pages
        self._reserve_tokens = reserve_tokens
        self._runs = Runs(num_pages)
        self._pending: list[tuple[int, int, int]] = []  # last step closed when it ended, first page, pages
        self._seqs: dict[int, _Seq] = {}
        self._unsaid: dict[int, _Seq] = {}  # their runs are news
        self._closed = self._finished = -1
        self._num_queries = self._num_query_tokens = 0

    # ---- a sequence's life

    def open(self, seq: int, tokens: Tokens, salt: str = "", limit: int | None = None,
             end: int | None = None) -> int:
        """A new sequence without memory; 0, since nothing is ever reused. end: tokens that it may have."""
        assert seq not in self._seqs
        most = self._reserve_tokens or end
        assert most is not None, "without reserve_tokens a sequence says how long it may become"
        self._seqs[seq] = _Seq(end=most, num_known=len(tokens))
        return 0

    def lookup(self, tokens: Tokens, salt: str = "", limit: int | None = None, *,
               host: bool = True) -> int:
        return 0

    def why_not_more(self, seq: int, tokens: Tokens) -> str:
        return "contiguous memory is not shared"

    def next_mark(self, seq: int, position: int) -> int:
        return NEVER

    def snapshot(self, seq: int, position: int, tokens: Tokens) -> None:
        raise AssertionError("nothing is marked")

    def reserve(self, seq: int, num_tokens: int) -> bool:
        """The first time its whole run, False when no free one is long enough; from then on nothing."""
        found = self._seqs[seq]
        if found.start:
            return True
        found.num_pages = self._pages(found.end)
        found.start = self._runs.take(found.num_pages)
        if not found.start:
            return False
        self._num_queries += 1
        self._num_query_tokens += found.num_known
        self._unsaid[seq] = found
        return True

    def reserve_all(self, seqs: Sequence[int], num_tokens: Sequence[int]) -> int:
        assert all(self._seqs[seq].start for seq in seqs)
        return len(seqs)

    def reservable(self, seq: int, num_tokens: int) -> int:
        return 0 if self.missing_pages(seq, num_tokens) else num_tokens

    def missing_pages(self, seq: int, num_tokens: int) -> int:
        """Pages by which the largest free run is too short; 0 for a sequence that has its own."""
        found = self._seqs[seq]
        return 0 if found.start else max(0, self._pages(found.end) - self._runs.largest)

    def own_pages(self, seq: int) -> int:
        return self._seqs[seq].num_pages

    def commit(self, seq: int, num_computed: int, tokens: Tokens) -> None:
        assert self._seqs[seq].num_computed <= num_computed <= self._seqs[seq].end
        self._seqs[seq].num_computed = num_computed

    def commit_all(self, seqs: Sequence[int], num_computed: Sequence[int],
                   tokens: Sequence[Tokens]) -> None:
        for seq, num, known in zip(seqs, num_computed, tokens):
            self.commit(seq, num, known)

    def fork(self, parent: int, child: int, num_tokens: int) -> int:
        """0: a child computes everything itself."""
        source = self._seqs[parent]
        self._seqs[child] = _Seq(end=source.end, num_known=source.num_known)
        return 0

    def release(self, seq: int) -> None:
        found = self._seqs.pop(seq)
        self._unsaid.pop(seq, None)
        if found.start:
            self._pending.append((self._closed, found.start, found.num_pages))
            self._settle()

    def put_away(self, seq: int, num_tokens: int) -> bool:
        return False

    def kept_away(self, seq: int) -> int | None:
        raise AssertionError("nothing is put away")

    def num_away_pages(self, seq: int) -> int:
        return 0

    # ---- steps

    def close_step(self, step: int, rows: Mapping[int, int], now: float = 0.0) -> StepNews:
        """Whole block tables of the sequences that got their run since the last step."""
        self._closed = step
        tables = tuple(TableNews(row=[], index=[], page=[]) for _ in self._rooms)
        for seq in [seq for seq in self._unsaid if seq in rows]:
            found = self._unsaid.pop(seq)
            page = found.start
            for room, table in zip(self._rooms, tables):
                count = room.num_entries(found.end)
                table.row.extend([rows[seq]] * count)
                table.index.extend(range(count))
                table.page.extend(range(page, page + count))
                page += count
        return StepNews(tables=tables, copies=NO_COPIES)

    def step_finished(self, step: int) -> None:
        self._finished = step
        self._settle()

    def return_tickets(self, tickets: Iterable[int]) -> None:
        assert not list(tickets), "nothing is copied here"

    def lose_tickets(self, tickets: Iterable[int]) -> list[int]:
        self.return_tickets(tickets)
        return []

    def _settle(self) -> None:
        """Free the runs that no step in flight refers to."""
        while self._pending and self._pending[0][0] <= self._finished:
            _, start, size = self._pending.pop(0)
            self._runs.give(start, size)

    # ---- numbers

    @property
    def stats(self) -> CacheStats:
        return CacheStats(num_queries=self._num_queries, num_query_tokens=self._num_query_tokens,
                          num_hit_tokens=0, num_evicted_pages=0, num_copied_pages=0)

    @property
    def num_free_pages(self) -> int:
        return self._runs.total

    @property
    def num_cached_pages(self) -> int:
        """None: nothing is shared."""
        return 0

    @property
    def num_pending_pages(self) -> int:
        return sum(size for _, _, size in self._pending)

    @property
    def num_used_pages(self) -> int:
        return self._num_pages - 1 - self.num_free_pages - self.num_pending_pages

    @property
    def usage(self) -> float:
        return self.num_used_pages / (self._num_pages - 1)

    @property
    def num_seqs(self) -> int:
        return len(self._seqs)

    def pages_to_run(self, num_tokens: int) -> int:
        return self._pages(self._reserve_tokens or num_tokens)

    def largest_request(self, most: int) -> int:
        most = min(most, self._reserve_tokens or most)
        if self._reserve_tokens and self._pages(self._reserve_tokens) >= self._num_pages:
            return 0
        return bisect_right(range(1, most + 1), self._num_pages - 1, key=self._pages)

    def fragmentation(self) -> Fragmentation:
        size, free = self._layout.page_bytes, self._runs.total
        used = sum(self._filled_bytes(seq.num_computed) for seq in self._seqs.values() if seq.start)
        return Fragmentation(
            num_residents=sum(seq.start > 0 for seq in self._seqs.values()),
            capacity_bytes=(self._num_pages - 1) * size, used_bytes=used,
            internal_bytes=self.num_used_pages * size - used, free_bytes=free * size,
            external_bytes=(free - self._runs.largest) * size)

    def _pages(self, num_tokens: int) -> int:
        return sum(room.num_entries(num_tokens) for room in self._rooms)

    def _filled_bytes(self, num_tokens: int) -> int:
        """Bytes of computed tokens: of an entry-wise group their share of its pages, of a state its pages."""
        size = self._layout.page_bytes
        return sum(group.state_pages * size * (num_tokens > 0) if group.kind is State
                   else num_tokens * size // group.tokens_per_page for group in self._layout.groups)

    def check(self) -> None:
        """Every page lies in one run: a sequence's, a pending or a free one."""
        held = [(seq.start, seq.num_pages) for seq in self._seqs.values() if seq.start]
        runs = sorted([*held, *self._runs.free, *((start, size) for _, start, size in self._pending)])
        at = 1
        for start, size in runs:
            assert start == at and size > 0, "pages are lost, or in two runs"
            at += size
        assert at == self._num_pages
        assert all(sum(a) < b[0] for a, b in zip(self._runs.free, self._runs.free[1:])), "runs not joined"
        assert all(self._seqs.get(seq) is found for seq, found in self._unsaid.items())
