"""The KV manager's slow twin: the same rules by brute force, without reference counts, hashes, page numbers
or a tree.

Pages are objects; who holds one is found by looking through all tables; a cached page is named by its whole
history. The host's pages are such objects too, in lists of their own (host.py).
"""

from dataclasses import dataclass, field

from ridgeline.spec.cache import CacheGroup, CacheLayout, State, Window
from tests.kv.host import Host, Page, followers, name_bytes

NEVER = 1 << 62


@dataclass(eq=False)
class Seq:
    salt: str
    text: tuple  # all its tokens, those to come too
    tables: list[list[Page | None]]
    computed: int
    reserved: int
    offered: list[int]
    query: int
    away: list[dict[int, Page]]
    marks: set[int] = field(default_factory=set)
    from_host: int = 0
    lost: bool = False
    snapshots: list[tuple[int, list[Page]]] = field(default_factory=list)


@dataclass(eq=False)
class Copy:
    source: Page
    target: Page
    ticket: int
    way: str = "here"  # or "out" to the host, or "back"
    key: tuple | None = None

    @property
    def pinned(self) -> tuple[Page, ...]:
        return (self.target,) if self.way == "out" else (self.source, self.target)


def first_seen(group: CacheGroup, query: int) -> int:
    """The first entry that holds a key which `query` sees."""
    if group.kind is not Window:
        return 0
    return max(0, (query - group.window_tokens + 1) // group.tokens_per_page)


def num_entries(group: CacheGroup, num_tokens: int) -> int:
    if group.kind is State:
        return group.state_pages if num_tokens else 0
    return -(-num_tokens // group.tokens_per_page)


def _all_tables(seq: Seq) -> list[list[Page | None]]:
    return [*seq.tables, *(pages for _, pages in seq.snapshots)]


@dataclass(eq=False)
class Twin:
    layout: CacheLayout
    num_pages: int
    caching: bool = True
    stride: int = 0
    most: int | None = None  # snapshots that stay cached
    heads: list[Page] = field(default_factory=list)  # their first pages, least recently used first
    seqs: dict[int, Seq] = field(default_factory=dict)
    cached: list[Page] = field(default_factory=list)
    idle: list[Page] = field(default_factory=list)
    pending: list[tuple[Page, int]] = field(default_factory=list)
    queued: list[Copy] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    closed: int = -1
    finished: int = -1
    next_ticket: int = 0
    num_evicted: int = 0
    num_copied: int = 0
    num_hit_tokens: int = 0
    num_host_hit_tokens: int = 0
    host: Host = field(default_factory=Host)
    flying: set[int] = field(default_factory=set)  # tickets that a closed step carries

    def __post_init__(self) -> None:
        self.host.pinned, self.host.held_by = self.pins, self.host_holders

    # ---- what is where

    def holders(self, page: Page) -> int:
        tables = [table for seq in self.seqs.values() for table in _all_tables(seq)]
        return sum(held is page for table in tables for held in table)

    def held(self) -> set[Page]:
        pages = {page for seq in self.seqs.values() for table in _all_tables(seq) for page in table}
        return {page for page in pages if page is not None}

    def free(self) -> int:
        return self.num_pages - 1 - len(self.held()) - len(self.pending)

    def pins(self, page: Page) -> int:
        return sum(pinned is page for copy in self.copies for pinned in copy.pinned)

    def host_holders(self, page: Page) -> int:
        return sum(held is page for seq in self.seqs.values() for away in seq.away for held in away.values())

    # ---- prefixes

    def serving(self, group: int, salt: str, tokens: tuple, index: int, end: int,
                host: bool = True) -> Page | None:
        """A cached page for entry `index` of a prefix of `end` tokens: the host's if the device has none."""
        for cached in (self.cached, self.host.cached if host else []):
            if (page := self._serving(cached, group, salt, tokens, index, end)) is not None:
                return page
        return None

    def _serving(self, cached: list[Page], group: int, salt: str, tokens: tuple, index: int,
                 end: int) -> Page | None:
        size = self.layout.groups[group].tokens_per_page
        stop = min(end, (index + 1) * size)
        found = [page for page in cached if page.group == group and page.key[0] == salt
                 and len(page.key[1]) == (index + 1) * size and page.key[1][:stop] == tokens[:stop]]
        return min(found, key=lambda page: name_bytes(page.key[1][index * size:]), default=None)

    def snapshot_of(self, group: int, salt: str, tokens: tuple, host: bool = False) -> list[Page | None]:
        """The cached pages of the state after `tokens`; the host's too where the device has none."""
        named = {page.part: page for page in [*(self.host.cached if host else []), *self.cached]
                 if (page.group, page.key) == (group, (salt, tokens))}
        return [named.get(part) for part in range(self.layout.groups[group].state_pages)]

    def servable(self, group: int, salt: str, tokens: tuple, end: int, host: bool) -> bool:
        spec = self.layout.groups[group]
        if spec.kind is State:
            return end == 0 or None not in self.snapshot_of(group, salt, tokens[:end], host)
        needed = range(first_seen(spec, end), -(-end // spec.tokens_per_page))
        return end % spec.tokens_per_entry == 0 and all(
            self.serving(group, salt, tokens, index, end, host) is not None for index in needed)

    def hit(self, tokens: tuple, salt: str, limit: int | None, *, states: bool = True,
            host: bool = True) -> int:
        """states=False: if a state could be had anywhere."""
        groups = [
            number for number, group in enumerate(self.layout.groups) if states or group.kind is not State]
        if not self.caching or not groups:
            return 0
        most = len(tokens) - 1 if limit is None else min(len(tokens) - 1, limit)
        return next(end for end in range(most, -1, -1)
                    if all(self.servable(group, salt, tokens, end, host) for group in groups))

    # ---- operations

    def open(self, seq: int, tokens: tuple, salt: str, limit: int | None, text: tuple) -> int:
        hit = self.hit(tokens, salt, limit)
        tables: list[list[Page | None]] = []
        away: list[dict[int, Page]] = []
        from_host = 0
        for number, spec in enumerate(self.layout.groups):
            if spec.kind is State:
                table = self.snapshot_of(number, salt, tokens[:hit], host=True) if hit else []
                for page in table:
                    if page in self.heads:
                        self.heads.remove(page)
                        self.heads.append(page)
            else:
                table = [
                    None if index < first_seen(spec, hit) else self.serving(number, salt, tokens, index, hit)
                    for index in range(num_entries(spec, hit))]
            away.append({index: page for index, page in enumerate(table) if page in self.host.cached})
            size = spec.tokens_per_page or hit
            from_host = max(from_host, len([token for token in range(hit) if token // size in away[-1]])
                            if spec.tokens_per_page else hit * bool(away[-1]))
            tables.append([None if page in self.host.cached else page for page in table])
            for page in tables[-1]:
                self._use(page)
            for page in away[-1].values():
                self.host.use(page)
        ends = {len(tokens) - 1, self.hit(tokens, salt, limit, states=False)}
        marks = {end // self.layout.block_tokens * self.layout.block_tokens for end in ends}
        self.seqs[seq] = Seq(salt, text, tables, hit, hit,
                             [self._full(spec, hit) for spec in self.layout.groups], len(tokens), away,
                             {mark for mark in marks if mark > hit}, from_host)
        return hit

    def next_mark(self, seq: int, position: int) -> int:
        if not self.caching or all(group.kind is not State for group in self.layout.groups):
            return NEVER
        strides = range(0, 10_000, self.stride) if self.stride else ()
        return min((mark for mark in {*self.seqs[seq].marks, *strides} if mark > position), default=NEVER)

    def snapshot(self, seq: int, position: int, tokens: tuple) -> None:
        state = self.seqs[seq]
        states = [number for number, group in enumerate(self.layout.groups) if group.kind is State]
        pages = sum(self.layout.groups[number].state_pages for number in states)
        if self.free() < pages or all(
                None not in self.snapshot_of(number, state.salt, tokens[:position]) for number in states):
            return
        kept: list[Page] = []
        state.snapshots.append((position, kept))
        for number in states:
            for part, page in enumerate(state.tables[number]):
                kept.append(page)
                target = self._take(number, part)
                self._copy(page, target)
                state.tables[number][part] = target
        self._settle_snapshots(state, tokens)

    def _settle_snapshots(self, state: Seq, tokens: tuple) -> None:
        while state.snapshots and state.snapshots[0][0] <= state.computed:
            position, kept = state.snapshots.pop(0)
            for at, page in enumerate(kept):
                key = (state.salt, tokens[:position])
                if self.snapshot_of(page.group, *key)[page.part] is None:
                    page.key = key
                    self.cached.append(page)
                    self.heads += [page] if at == 0 else []
                self._left(page)
            self.heads = [head for head in self.heads if head.key is not None]
            for head in list(self.heads):
                whole = [page for page in self.cached if page.key == head.key and page.group == head.group]
                many = self.most is not None and len(self.heads) > self.most
                if many and all(page in self.idle for page in whole):
                    self.heads.remove(head)
                    for page in whole:
                        self._evict(page)

    def lacking(self, seq: int, num_tokens: int) -> tuple[int, list[tuple[list, int, bool]]]:
        """(pages needed less pages free, shared entries that would be written)."""
        state, shared = self.seqs[seq], []
        new = sum(map(len, state.away))
        for spec, table in zip(self.layout.groups, state.tables):
            new += max(0, num_entries(spec, num_tokens) - len(table))
            start = 0 if spec.kind is State else state.computed // spec.tokens_per_page
            for index in range(start, min(len(table), num_entries(spec, num_tokens))):
                if table[index] is None:
                    continue
                sole = self.holders(table[index]) == 1
                if not sole or table[index].key is not None:
                    shared.append((table, index, sole))
        return new + sum(not sole for _, _, sole in shared) - self.free(), shared

    def reserve(self, seq: int, num_tokens: int) -> bool:
        lacking, shared = self.lacking(seq, num_tokens)
        if lacking > 0:
            return False
        spare, state = -lacking, self.seqs[seq]
        for table, index, sole in shared:
            source = table[index]
            if sole and spare == 0:
                self._forget(source)
                continue
            spare -= sole
            target = self._take(source.group, source.part)
            self._copy(source, target)
            table[index] = target
            self._left(source)
        for number in range(len(state.tables)):
            self._bring(state, number)
        for number, (spec, table) in enumerate(zip(self.layout.groups, state.tables)):
            while len(table) < num_entries(spec, num_tokens):
                table.append(self._take(number, len(table) if spec.kind is State else 0))
        state.reserved = max(state.reserved, num_tokens)
        if state.query:
            self.num_hit_tokens += state.computed
            self.num_host_hit_tokens += state.from_host
            state.query = 0
        return True

    def _bring(self, state: Seq, number: int) -> None:
        """Back from the host, or from a device page that has the same by now."""
        spec, away, table = self.layout.groups[number], state.away[number], state.tables[number]
        for index, held in list(away.items()):
            key = None
            if self.caching and index < self._full(spec, state.computed):
                key = (state.salt, state.text[:(index + 1) * spec.tokens_per_page])
            same = [page for page in self.cached if key and (page.group, page.key) == (number, key)]
            twin = same[0] if same else None
            if twin is not None:
                self._use(twin)
                table[index] = twin
            else:
                table[index] = self._take(number, held.part)
                self._copy(held, table[index], "back", key)
            del away[index]
            self.host.left(held)

    def put_away(self, seq: int, num_tokens: int) -> bool:
        state = self.seqs[seq]
        entries = [(number, index) for number, spec in enumerate(self.layout.groups)
                   for index, page in enumerate(state.tables[number][:num_entries(spec, num_tokens)])
                   if page is not None]
        flying = [copy.target for copy in self.copies if copy.ticket in self.flying]
        if len(entries) > self.host.free() or any(
                state.tables[number][index] in flying for number, index in entries):
            return False
        for number, index in entries:
            page = state.tables[number][index]
            twin = self.host.find(page) if page.key is not None else None
            if twin is not None:
                self.host.use(twin)
            else:
                twin = self.host.take(page)
                self._copy(page, twin, "out", page.key)
            state.away[number][index] = twin
        for number, spec in enumerate(self.layout.groups):
            for index in reversed(range(len(state.tables[number]))):
                self._clear(state.tables[number], index)
            del state.tables[number][num_entries(spec, num_tokens):]
        dropped, state.snapshots = state.snapshots, []
        for page in [page for _, pages in dropped for page in pages]:
            self._left(page)
        state.reserved = num_tokens
        return True

    def kept_away(self, seq: int) -> int | None:
        state = self.seqs[seq]
        if state.lost:
            return 0
        held = [page for away in state.away for page in away.values()]
        flying = [copy for copy in self.copies if copy.ticket in self.flying and copy.way == "out"]
        return None if any(copy.target in held for copy in flying) else state.reserved

    def commit(self, seq: int, num_computed: int, tokens: tuple) -> None:
        state = self.seqs[seq]
        state.computed = num_computed
        for number, (spec, table) in enumerate(zip(self.layout.groups, state.tables)):
            for index in range(state.offered[number], self._full(spec, num_computed) if self.caching else 0):
                page, key = table[index], (state.salt, tokens[:(index + 1) * spec.tokens_per_page])
                if page is None:  # away
                    continue
                if page.key is None and not any(c.group == number and c.key == key for c in self.cached):
                    page.key = key
                    self.cached.append(page)
            state.offered[number] = self._full(spec, num_computed)
            for index in range(first_seen(spec, num_computed - 1)):
                self._clear(table, index)
                if index in state.away[number]:
                    self.host.left(state.away[number].pop(index))
        self._settle_snapshots(state, tokens)

    def fork(self, parent: int, child: int, num_tokens: int, tokens: tuple, text: tuple) -> int:
        state = self.seqs[parent]

        def rests(end: int) -> bool:
            return state.computed == state.reserved == end

        def exact(spec: CacheGroup, table: list, end: int) -> bool:
            if spec.kind is State:
                number = self.layout.groups.index(spec)
                return rests(end) or None not in self.snapshot_of(number, state.salt, tokens[:end])
            number = self.layout.groups.index(spec)
            gone = [index for index, page in enumerate(table) if page is None
                    and index not in state.away[number]]
            return end % spec.tokens_per_entry == 0 and all(index < first_seen(spec, end) for index in gone)

        shared = next((end for end in range(num_tokens, 0, -1)
                       if all(map(exact, self.layout.groups, state.tables, [end] * len(state.tables)))), 0)
        tables = [
            self.snapshot_of(number, state.salt, tokens[:shared])
            if spec.kind is State and shared and not rests(shared) else table[: num_entries(spec, shared)]
            for number, (spec, table) in enumerate(zip(self.layout.groups, state.tables))]
        for page in [page for table in tables for page in table]:
            self._use(page)
        away = [{index: page for index, page in held.items() if index < len(table) and table[index] is None}
                for held, table in zip(state.away, tables)]
        for page in [page for held in away for page in held.values()]:
            self.host.use(page)
        self.seqs[child] = Seq(state.salt, text, tables, shared, shared,
                               [self._full(spec, shared) for spec in self.layout.groups], 0, away)
        return shared

    def release(self, seq: int, tokens: tuple) -> None:
        state = self.seqs[seq]
        dropped, state.snapshots = state.snapshots, []
        for page in [page for _, pages in dropped for page in pages]:
            self._left(page)
        for number, (spec, table) in enumerate(zip(self.layout.groups, state.tables)):
            for index in reversed(range(len(table))):
                page = table[index]
                if page is not None and page.key is None and self.caching and index < state.offered[number]:
                    key = (state.salt, tokens[:(index + 1) * spec.tokens_per_page])
                    for other in [c for c in self.cached if c.group == number and c.key == key]:
                        if self.holders(other) == 0:
                            self._use(other)
                            self._left(other)
                self._clear(table, index)
                if index in state.away[number]:
                    self.host.left(state.away[number].pop(index))
        del self.seqs[seq]
        for place in reversed(range(len(self.queued))):
            copy = self.queued[place]
            held = (self.host_holders if copy.way == "out" else self.holders)(copy.target)
            read = any(later.source is copy.target for later in self.queued[place + 1:])
            if not held and not read and not (copy.way == "out" and copy.key):
                del self.queued[place]
                self.num_copied -= copy.way == "here"
                self._close(copy)

    def close_step(self, step: int) -> None:
        self.flying |= {copy.ticket for copy in self.queued}
        self.queued.clear()
        self.closed = step

    def step_finished(self, step: int) -> None:
        self.finished = step
        for page, dropped in list(self.pending):
            if dropped <= step and not self.pins(page):
                self.pending.remove((page, dropped))
                self._settle(page)

    def done(self, ticket: int) -> None:
        copy = next(copy for copy in self.copies if copy.ticket == ticket)
        cached = self.host.cached if copy.way == "out" else self.cached
        if copy.key is not None and not any(
                (page.group, page.part, page.key) == (copy.target.group, copy.target.part, copy.key)
                for page in cached):
            copy.target.key = copy.key
            cached.append(copy.target)
        self._close(copy)

    def lose(self, tickets: list[int]) -> list[int]:
        lost = [copy for copy in self.copies if copy.ticket in tickets]
        empty = [copy.target for copy in lost]
        for copy in self.copies[self.copies.index(lost[-1]) + 1:] if lost else ():
            if copy.source in empty:
                empty.append(copy.target)
                copy.key = None
        for page in empty:
            if page in self.cached:
                self._forget(page)
        for copy in lost:
            self._close(copy)
        for state in self.seqs.values():
            state.lost |= any(page in empty for away in state.away for page in away.values())
        return [seq for seq, state in self.seqs.items()
                if any(page in empty for table in state.tables for page in table)]

    def _close(self, copy: Copy) -> None:
        self.copies.remove(copy)
        self.host.unpinned(copy.pinned)
        for page in copy.pinned:
            for waiting, dropped in list(self.pending):
                if waiting is page and dropped <= self.finished and not self.pins(page):
                    self.pending.remove((waiting, dropped))
                    self._settle(page)

    # ---- pages come and go

    def _full(self, spec: CacheGroup, num_tokens: int) -> int:
        return 0 if spec.kind is State else num_tokens // spec.tokens_per_page

    def _copy(self, source: Page, target: Page, way: str = "here", key: tuple | None = None) -> None:
        copy = Copy(source, target, self.next_ticket, way, key)
        self.next_ticket += 1
        self.num_copied += way == "here"
        self.copies.append(copy)
        self.queued.append(copy)

    def _forget(self, page: Page) -> None:
        self.cached.remove(page)
        page.key = None

    def _take(self, group: int, part: int = 0) -> Page:
        assert self.free() > 0
        if self.free() == len(self.idle):
            victim = self.idle[0]
            while below := followers(victim, self.idle, self.layout):
                victim = min(below, key=lambda page: name_bytes(page.key[1]))
            self._evict(victim)
        return Page(group, part)

    def _evict(self, page: Page) -> None:
        """To the host, if it has room and not the same."""
        self.idle.remove(page)
        twin = self.host.find(page)
        if twin is not None:
            self.host.use(twin)
            self.host.left(twin)
        elif self.host.free():
            target = self.host.take(page)
            self._copy(page, target, "out", page.key)
            self.host.left(target)
        self._forget(page)
        self.num_evicted += 1

    def _use(self, page: Page | None) -> None:
        if page in self.idle:
            self.idle.remove(page)
        self.pending = [(waiting, step) for waiting, step in self.pending if waiting is not page]

    def _clear(self, table: list[Page | None], index: int) -> None:
        page, table[index] = table[index], None
        if page is not None:
            self._left(page)

    def _left(self, page: Page) -> None:
        """A holder of this page is gone."""
        if self.holders(page):
            return
        if self.closed > self.finished or self.pins(page):
            self.pending.append((page, self.closed))
        else:
            self._settle(page)

    def _settle(self, page: Page) -> None:
        if page.key is not None:
            self.idle.append(page)
