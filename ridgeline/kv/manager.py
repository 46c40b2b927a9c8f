"""The door of the KV cache's bookkeeping: who holds which page. Called by the scheduler only; owns no bytes.

It knows the four cache kinds (kinds.py) and no attention type, no row's meaning and no clock. Sequences are
named by the scheduler's request numbers. A page is an index into the one arena; page 0 is the null page.

One step of the scheduler, in order:
  1. results of the oldest step arrive: return_tickets(result.returned_tickets), step_finished(step),
     then commit_all / commit for what is now computed, release for what ended
  2. plan: open new sequences, reserve_all / reserve what the step will write, fork
  3. news = close_step(step, rows): table entries and copies that the plan carries
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from ridgeline.kv.away import Away
from ridgeline.kv.begin import Begin
from ridgeline.kv.check import check_all
from ridgeline.kv.computed import Computed
from ridgeline.kv.copies import DEVICE, HOST, CopyQueue
from ridgeline.kv.fragments import fragmentation_of
from ridgeline.kv.kinds import rooms_of
from ridgeline.kv.news import CacheStats, Fragmentation, StepNews, TableNews
from ridgeline.kv.pool import PagePool
from ridgeline.kv.prefix import PrefixIndex, Tokens
from ridgeline.kv.seqtable import SeqTable
from ridgeline.kv.snapshots import Snapshots
from ridgeline.kv.tier import HostTier
from ridgeline.kv.writable import Writable
from ridgeline.spec.cache import CacheLayout, Paged


class KVManager:
    """Pages, block tables, the prefix index and copy-on-write for all sequences of one engine.

    Misuse (an unknown sequence, a commit that goes back) is an AssertionError; running out of pages is a
    return value.
    """

    grows = True

    def __init__(self, layout: CacheLayout, num_pages: int, *, prefix_caching: bool = True,
                 snapshot_stride: int = 0, snapshot_bytes: int | None = None,
                 num_host_pages: int = 0) -> None:
        """num_pages counts the null page, as Capacity does. snapshot_stride: tokens between the snapshots of
        recurrent states along a sequence, 0 for none there. snapshot_bytes: of the arena, the most that they
        may take while nobody uses them; None for what is free. num_host_pages: of the host's arena, its null
        page too; 0 for none."""
        self._rooms = rooms_of(layout.groups)
        self._no_news = tuple(TableNews(row=[], index=[], page=[]) for _ in self._rooms)
        self.follows = prefix_caching or any(group.kind is not Paged for group in layout.groups)
        # one chain names the pages of all groups: it steps by what divides each group's page
        self._block_tokens = layout.block_tokens
        self._page_bytes = layout.page_bytes
        leaf_first = {space: room.leaf_first for room in self._rooms for space in room.spaces}
        arenas = []
        for pages in (num_pages, num_host_pages) if num_host_pages > 1 else (num_pages,):
            index = PrefixIndex(len(leaf_first), keep_gone=pages)
            order = tuple(leaf_first[space] for space in range(len(leaf_first)))
            arenas.append((PagePool(pages, index, order), index))
        self._pool, self._index = arenas[0]
        self._seqs: dict[int, SeqTable] = {}
        self._dirty: dict[int, SeqTable] = {}
        self._copies = CopyQueue(arenas)
        self._tier = HostTier(*arenas[1], self._copies) if len(arenas) > 1 else None
        self._away = None
        if self._tier is not None:
            self._pool.below = self._tier
            self._away = Away(self._rooms, self._pool, self._index, self._copies, self._tier)
        self._writable = Writable(self._rooms, self._pool, self._index, self._copies, self._away)
        one_bytes = sum(group.state_pages for group in layout.groups) * layout.page_bytes
        self._snapshots = Snapshots(
            self._rooms, self._pool, self._index, self._copies, block_tokens=self._block_tokens,
            stride=snapshot_stride,
            most=None if snapshot_bytes is None else snapshot_bytes // max(one_bytes, 1))
        self._begin = Begin(self._rooms, self._pool, tuple(index for _, index in arenas), self._snapshots,
                            self._away, block_tokens=self._block_tokens,
                            caching=prefix_caching and bool(self._rooms))
        self._computed = Computed(self._rooms, self._pool, self._index, self._snapshots, self._away,
                                  block_tokens=self._block_tokens)
        self._num_queries = self._num_query_tokens = self._num_hit_tokens = self._num_host_hit_tokens = 0

    # ---- a sequence's life

    def open(self, seq: int, tokens: Tokens, salt: str = "", limit: int | None = None,
             end: int | None = None) -> int:
        """A new sequence `seq`; returns how many of `tokens` are already in the cache (its num_computed).

        The longest cached prefix is shared, down to a part of a block (the first write into it copies the
        page). It is at most len(tokens) - 1, since the last token must be computed, and at most `limit` (0:
        reuse nothing; prompt log-probabilities from position p need limit p - 1). Takes no free page and
        cannot fail; it does hold the pages it shares, so a sequence that cannot go on should be released, not
        left open. Sequences of different salt never share. `tokens` is best an array, which is named faster.
        end: positions that it will ever have, beyond whose block nothing is reserved; None where nobody can
        say.
        """
        assert seq not in self._seqs, f"sequence {seq} is open already"
        table = self._begin.open(seq, tokens, salt, limit, end)
        self._enter(table)
        return table.num_computed

    def why_not_more(self, seq: int, tokens: Tokens) -> str:
        """Why a sequence that was just opened reused no more of its `tokens`, where no limit forbade it."""
        return self._begin.why_not_more(self._seqs[seq], tokens)

    def lookup(self, tokens: Tokens, salt: str = "", limit: int | None = None, *,
               host: bool = True) -> int:
        """What open() would return, without opening (routing, admission order); host=False: if the host had
        nothing."""
        return self._begin.lookup(tokens, salt, limit, host=host)

    def next_mark(self, seq: int, position: int) -> int:
        """The first position past this one where a chunk should end and snapshot() be called; far beyond any
        sequence where no state is kept."""
        return self._snapshots.next_mark(self._seqs[seq], position)

    def snapshot(self, seq: int, position: int, tokens: Tokens) -> None:
        """Keep the recurrent states at `position`, a mark, once it is computed.

        To be called when all steps so far end there, before a step that passes it is closed. tokens: at least
        those below it. The sequence goes on in a copy; without free pages for it nothing is kept.
        """
        table = self._seqs[seq]
        assert position <= table.reserved
        self._snapshots.take(table, position, tokens)
        self._dirty[seq] = table

    def reserve(self, seq: int, num_tokens: int) -> bool:
        """Make positions [num_computed, num_tokens) writable: new pages, and copies of shared ones.

        False, and nothing changed, when there are not enough pages now. Then look at missing_pages() and
        num_pending_pages: pages of sequences just released come back only when the step in flight has
        finished (step_finished), so a scheduler preempts no more than until missing <= pending, and otherwise
        waits a step. A decode with one step in flight reserves scheduled + 1.
        """
        table = self._seqs[seq]
        if num_tokens > table.ready and not self._grow(table, num_tokens):
            return False
        if num_tokens > table.reserved:
            table.reserved = num_tokens
        return True

    def reserve_all(self, seqs: Sequence[int], num_tokens: Sequence[int]) -> int:
        """reserve() for each pair in order until one fails; returns how many succeeded."""
        tables, grow = self._seqs, self._grow
        for done, (seq, num) in enumerate(zip(seqs, num_tokens)):
            table = tables[seq]
            if num > table.ready and not grow(table, num):
                return done
            if num > table.reserved:
                table.reserved = num
        return len(seqs)

    def reservable(self, seq: int, num_tokens: int) -> int:
        """The largest count <= num_tokens for which reserve() would succeed now (at least num_computed).

        Lets a chunk of a prompt be cut to the pages there are.
        """
        table = self._seqs[seq]
        low, high = table.num_computed, max(num_tokens, table.num_computed)
        while low < high:
            middle = (low + high + 1) // 2
            if middle <= table.ready or self._writable.spare(table, middle) >= 0:
                low = middle
            else:
                high = middle - 1
        return low

    def own_pages(self, seq: int) -> int:
        """Pages that nobody else holds: what releasing it gives back at the least."""
        refs = self._pool.refs
        return sum(refs[page] == 1 for group in self._seqs[seq].groups for page in group.pages)

    def missing_pages(self, seq: int, num_tokens: int) -> int:
        """Pages that reserve(seq, num_tokens) lacks now; 0 when it would succeed."""
        table = self._seqs[seq]
        return 0 if num_tokens <= table.ready else max(0, -self._writable.spare(table, num_tokens))

    def commit(self, seq: int, num_computed: int, tokens: Tokens) -> None:
        """Positions < num_computed are computed and hold `tokens` (at least that many known).

        Full blocks enter the prefix index and pages that left a window are dropped (all that the query at
        num_computed - 1 cannot see, so that a fork at the last computed token stays exact). Never called for
        a failed step: what it wrote stays out of the index. num_computed never goes back.
        """
        table = self._seqs[seq]
        assert table.num_computed <= num_computed <= min(len(tokens), table.reserved)
        table.num_computed = num_computed
        if num_computed >= table.wake and self._computed.settle(table, tokens):
            self._dirty[seq] = table

    def commit_all(self, seqs: Sequence[int], num_computed: Sequence[int],
                   tokens: Sequence[Tokens]) -> None:
        """commit() for each triple."""
        tables, settle = self._seqs, self._computed.settle
        for seq, num, known in zip(seqs, num_computed, tokens):
            table = tables[seq]
            assert table.num_computed <= num <= table.reserved
            table.num_computed = num
            if num >= table.wake and settle(table, known):
                self._dirty[seq] = table

    def fork(self, parent: int, child: int, num_tokens: int) -> int:
        """A new sequence `child` that shares the parent's pages; returns its num_computed, <= num_tokens.

        num_tokens <= the parent's num_computed. Usually returns num_tokens; less where a cache entry covers
        several tokens; 0 (the child shares nothing and computes everything) where a group no longer has that
        prefix: a window that moved on, a state that ran ahead. Whoever reserves positions in a shared page
        gets a copy, in each group; the parent may go on writing what it reserved before, which is beyond what
        the child reads. Takes no free page and cannot fail.
        """
        source = self._seqs[parent]
        assert child not in self._seqs and num_tokens <= source.num_computed
        table = self._begin.fork(source, child, num_tokens)
        self._enter(table)
        return table.num_computed

    def release(self, seq: int) -> None:
        """The sequence ends or is preempted. Its indexed pages stay cached; all are reusable once no step
        that was closed before now is in flight. Queued copies that nobody needs any more are cancelled."""
        table = self._seqs.pop(seq)
        self._dirty.pop(seq, None)
        self._snapshots.release(table)
        for room, group in zip(self._rooms, table.groups):
            # from the tail: what follows is older than what it follows, so eviction takes leaves first
            first, stop, pages = group.first, group.num_indexed, group.pages
            if not group.away and self._index.has_all(pages[first:stop]):
                self._pool.drop_all(pages[:first - 1 if first else None:-1])
                continue
            for index in range(len(pages) - 1, first - 1, -1):
                if index in group.away and self._away is not None:
                    self._away.drop(group, index)
                    continue
                if index < stop and pages[index] not in self._index:
                    self._computed.touch_twin(table, room, index)
                self._pool.drop(pages[index])
        self._copies.cancel_unneeded()

    # ---- to the host and back

    def put_away(self, seq: int, num_tokens: int) -> bool:
        """A preempted sequence keeps what its first num_tokens positions have in the host's arena; False, and
        nothing done, when there is no room. Positions from num_computed on may still be written by the steps
        that are closed: the copies run after them."""
        table = self._seqs[seq]
        if self._away is None or not self._away.put(table, num_tokens):
            return False
        self._snapshots.release(table)
        self._dirty.pop(seq, None)
        return True

    def kept_away(self, seq: int) -> int | None:
        """How many tokens a sequence that was put away goes on from with its next reserve(), which brings its
        pages back; 0 when some never reached the host, None while that is not known: a step in flight
        tells."""
        table = self._seqs[seq]
        if table.lost:
            return 0
        return None if self._away is not None and self._away.under_way(table) else table.reserved

    def num_away_pages(self, seq: int) -> int:
        """Device pages that its next reserve() takes for what the host has of it, at the most."""
        return 0 if self._away is None else self._away.num_pages(self._seqs[seq])

    # ---- steps

    def close_step(self, step: int, rows: Mapping[int, int], now: float = 0.0) -> StepNews:
        """The plan of `step` is complete; steps come in growing order. rows: sequence -> runner row, for all
        that have a row; a sequence without one keeps its news for a later step. now: seconds, for the record
        of what was evicted when. Pages freed from now on count
        as referenced by this step until step_finished(step)."""
        self._pool.close_step(step)
        self._index.now = now
        due, news = [seq for seq in self._dirty if seq in rows], self._no_news
        if due:
            news = tuple([TableNews(row=[], index=[], page=[]) for _ in self._rooms])
        for seq in due:
            row = rows[seq]
            for group, out in zip(self._dirty.pop(seq).groups, news):
                if group.news:
                    out.row.extend([row] * len(group.news))
                    out.index.extend(group.news)
                    out.page.extend(map(group.pages.__getitem__, group.news))
                    group.news.clear()
        return StepNews(tables=news, copies=self._copies.take())

    def step_finished(self, step: int) -> None:
        """This step and all before have finished on the device: what was freed while they ran is reusable."""
        self._pool.step_finished(step)

    def return_tickets(self, tickets: Iterable[int]) -> None:
        """These copies are done: unpin their pages."""
        self._copies.done(tickets)

    def lose_tickets(self, tickets: Sequence[int]) -> list[int]:
        """These copies were never run, since their step broke. The sequences that hold a page which they were
        to fill: what those compute is wrong, whether that step had them or not."""
        if not tickets:
            return []
        lost = self._copies.lost(tickets)
        broken = []
        for table in self._seqs.values() if lost else ():
            table.lost |= any((HOST, page) in lost for group in table.groups for page in group.away.values())
            if any((DEVICE, page) in lost for group in table.groups for page in group.pages):
                broken.append(table.seq)
        return broken

    # ---- numbers

    @property
    def stats(self) -> CacheStats:
        """A snapshot of the counts."""
        return CacheStats(num_queries=self._num_queries, num_query_tokens=self._num_query_tokens,
                          num_hit_tokens=self._num_hit_tokens, num_evicted_pages=self._pool.num_evicted,
                          num_copied_pages=self._copies.num_copied,
                          num_host_hit_tokens=self._num_host_hit_tokens,
                          num_out_pages=self._copies.num_out, num_back_pages=self._copies.num_back)

    @property
    def num_free_pages(self) -> int:
        """Pages that can be handed out now, cached ones that may be evicted included."""
        return self._pool.num_free

    @property
    def num_cached_pages(self) -> int:
        """Of the free pages, those that hold a prefix which may be reused."""
        return self._pool.num_idle

    @property
    def num_pending_pages(self) -> int:
        """Pages that nobody holds but that a step in flight or a copy still references."""
        return self._pool.num_pending

    @property
    def num_used_pages(self) -> int:
        """Pages that live sequences hold."""
        return self._pool.num_held

    @property
    def usage(self) -> float:
        """Share of the arena that live sequences hold, 0..1."""
        return self._pool.num_held / (self._pool.num_pages - 1)

    @property
    def num_seqs(self) -> int:
        """Sequences that are open."""
        return len(self._seqs)

    def pages_to_run(self, num_tokens: int) -> int:
        """Pages that one sequence needs to grow to num_tokens known tokens, stepping in small chunks."""
        return sum(room.most_pages(num_tokens) for room in self._rooms)

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence of num_tokens known tokens can ever run, alone."""
        return self.pages_to_run(num_tokens) < self._pool.num_pages

    def largest_request(self, most: int) -> int:
        """The largest num_tokens <= most that fits()."""
        return bisect_right(range(1, most + 1), self._pool.num_pages - 1, key=self.pages_to_run)

    def fragmentation(self) -> Fragmentation:
        """What the arena's bytes are now."""
        return fragmentation_of(self._rooms, self._seqs.values(), self._pool, self._page_bytes)

    def table(self, seq: int, group: int) -> tuple[int, ...]:
        """The block table of one group: page of each index, 0 where none is needed."""
        return tuple(self._seqs[seq].groups[group].pages)

    def page_of(self, seq: int, group: int, position: int) -> int:
        """The page that holds `position` in a Paged or Window group, 0 if it left the window."""
        return self._seqs[seq].groups[group].pages[position // self._rooms[group].page_tokens]

    def check(self) -> None:
        """Re-derive everything from the tables, the tickets and the index; AssertionError on any
        difference."""
        check_all(self._rooms, self._seqs.values(), self._pool, self._index, self._copies, self._tier,
                  self._block_tokens)
        assert all(self._seqs.get(seq) is table for seq, table in self._dirty.items())

    # ---- inside

    def _enter(self, table: SeqTable) -> None:
        self._seqs[table.seq] = table
        self._dirty[table.seq] = table

    def _grow(self, table: SeqTable, num_tokens: int) -> bool:
        """The slow half of reserve()."""
        if not self._writable.grow(table, num_tokens):
            return False
        self._dirty[table.seq] = table
        if table.num_query:
            self._num_queries += 1
            self._num_query_tokens += table.num_query
            self._num_hit_tokens += table.num_computed
            self._num_host_hit_tokens += table.num_host
            table.num_query = 0
        return True
