"""The KV manager's slow twin: the same rules by brute force, without reference counts, hashes, page numbers
or a tree.

Pages are objects; who holds one is found by looking through all tables; a cached page is named by its whole
history.
"""

from dataclasses import dataclass, field

from ridgeline.spec.cache import CacheGroup, CacheLayout, Paged, State, Window

NEVER = 1 << 62


@dataclass(eq=False)
class Page:
    group: int
    part: int = 0  # which page of a state
    key: tuple | None = None  # (salt, all tokens up to the page's end) while cached


@dataclass(eq=False)
class Seq:
    salt: str
    tables: list[list[Page | None]]
    computed: int
    reserved: int
    offered: list[int]
    query: int
    marks: set[int] = field(default_factory=set)
    snapshots: list[tuple[int, list[Page]]] = field(default_factory=list)


@dataclass(eq=False)
class Copy:
    source: Page
    target: Page
    ticket: int


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


def _bytes(tokens: tuple) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


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
        return sum((copy.source is page) + (copy.target is page) for copy in self.copies)

    # ---- prefixes

    def serving(self, group: int, salt: str, tokens: tuple, index: int, end: int) -> Page | None:
        """A cached page for entry `index` of a prefix of `end` tokens."""
        size = self.layout.groups[group].tokens_per_page
        stop = min(end, (index + 1) * size)
        found = [page for page in self.cached if page.group == group and page.key[0] == salt
                 and len(page.key[1]) == (index + 1) * size and page.key[1][:stop] == tokens[:stop]]
        return min(found, key=lambda page: _bytes(page.key[1][index * size:]), default=None)

    def snapshot_of(self, group: int, salt: str, tokens: tuple) -> list[Page | None]:
        """The cached pages of the state after `tokens`."""
        named = {page.part: page for page in self.cached if (page.group, page.key) == (group, (salt, tokens))}
        return [named.get(part) for part in range(self.layout.groups[group].state_pages)]

    def servable(self, group: int, salt: str, tokens: tuple, end: int) -> bool:
        spec = self.layout.groups[group]
        if spec.kind is State:
            return end == 0 or None not in self.snapshot_of(group, salt, tokens[:end])
        needed = range(first_seen(spec, end), -(-end // spec.tokens_per_page))
        return end % spec.tokens_per_entry == 0 and all(
            self.serving(group, salt, tokens, index, end) is not None for index in needed)

    def hit(self, tokens: tuple, salt: str, limit: int | None, *, states: bool = True) -> int:
        """states=False: if a state could be had anywhere."""
        groups = [
            number for number, group in enumerate(self.layout.groups) if states or group.kind is not State]
        if not self.caching or not groups:
            return 0
        most = len(tokens) - 1 if limit is None else min(len(tokens) - 1, limit)
        return next(end for end in range(most, -1, -1)
                    if all(self.servable(group, salt, tokens, end) for group in groups))

    # ---- operations

    def open(self, seq: int, tokens: tuple, salt: str, limit: int | None) -> int:
        hit = self.hit(tokens, salt, limit)
        tables: list[list[Page | None]] = []
        for number, spec in enumerate(self.layout.groups):
            if spec.kind is State:
                tables.append(self.snapshot_of(number, salt, tokens[:hit]) if hit else [])
                for page in tables[-1]:
                    self._use(page)
                    if page in self.heads:
                        self.heads.remove(page)
                        self.heads.append(page)
                continue
            table = [None if index < first_seen(spec, hit) else self.serving(number, salt, tokens, index, hit)
                     for index in range(num_entries(spec, hit))]
            for page in table:
                self._use(page)
            tables.append(table)
        ends = {len(tokens) - 1, self.hit(tokens, salt, limit, states=False)}
        marks = {end // self.layout.block_tokens * self.layout.block_tokens for end in ends}
        self.seqs[seq] = Seq(salt, tables, hit, hit, [self._full(spec, hit) for spec in self.layout.groups],
                             len(tokens), {mark for mark in marks if mark > hit})
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
                        self.idle.remove(page)
                        self._forget(page)
                        self.num_evicted += 1

    def lacking(self, seq: int, num_tokens: int) -> tuple[int, list[tuple[list, int, bool]]]:
        """(pages needed less pages free, shared entries that would be written)."""
        state, new, shared = self.seqs[seq], 0, []
        for spec, table in zip(self.layout.groups, state.tables):
            new += max(0, num_entries(spec, num_tokens) - len(table))
            start = 0 if spec.kind is State else state.computed // spec.tokens_per_page
            for index in range(start, min(len(table), num_entries(spec, num_tokens))):
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
        for number, (spec, table) in enumerate(zip(self.layout.groups, state.tables)):
            while len(table) < num_entries(spec, num_tokens):
                table.append(self._take(number, len(table) if spec.kind is State else 0))
        state.reserved = max(state.reserved, num_tokens)
        if state.query:
            self.num_hit_tokens += state.computed
            state.query = 0
        return True

    def commit(self, seq: int, num_computed: int, tokens: tuple) -> None:
        state = self.seqs[seq]
        state.computed = num_computed
        for number, (spec, table) in enumerate(zip(self.layout.groups, state.tables)):
            for index in range(state.offered[number], self._full(spec, num_computed) if self.caching else 0):
                page, key = table[index], (state.salt, tokens[:(index + 1) * spec.tokens_per_page])
                if page.key is None and not any(c.group == number and c.key == key for c in self.cached):
                    page.key = key
                    self.cached.append(page)
            state.offered[number] = self._full(spec, num_computed)
            for index in range(first_seen(spec, num_computed - 1)):
                self._clear(table, index)
        self._settle_snapshots(state, tokens)

    def fork(self, parent: int, child: int, num_tokens: int, tokens: tuple) -> int:
        state = self.seqs[parent]

        def rests(end: int) -> bool:
            return state.computed == state.reserved == end

        def exact(spec: CacheGroup, table: list, end: int) -> bool:
            if spec.kind is State:
                number = self.layout.groups.index(spec)
                return rests(end) or None not in self.snapshot_of(number, state.salt, tokens[:end])
            return end % spec.tokens_per_entry == 0 and None not in table[first_seen(spec, end):]

        shared = next((end for end in range(num_tokens, 0, -1)
                       if all(map(exact, self.layout.groups, state.tables, [end] * len(state.tables)))), 0)
        tables = [
            self.snapshot_of(number, state.salt, tokens[:shared])
            if spec.kind is State and shared and not rests(shared) else table[: num_entries(spec, shared)]
            for number, (spec, table) in enumerate(zip(self.layout.groups, state.tables))]
        for page in [page for table in tables for page in table]:
            self._use(page)
        self.seqs[child] = Seq(state.salt, tables, shared, shared,
                               [self._full(spec, shared) for spec in self.layout.groups], 0)
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
        del self.seqs[seq]
        for copy in reversed(list(self.queued)):
            if self.holders(copy.target) == 0 and self.pins(copy.target) == 1:
                self.queued.remove(copy)
                self.num_copied -= 1
                self.done(copy.ticket)

    def close_step(self, step: int) -> None:
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
        self.copies.remove(copy)
        for page in (copy.source, copy.target):
            for waiting, dropped in list(self.pending):
                if waiting is page and dropped <= self.finished and not self.pins(page):
                    self.pending.remove((waiting, dropped))
                    self._settle(page)

    # ---- pages come and go

    def _full(self, spec: CacheGroup, num_tokens: int) -> int:
        return 0 if spec.kind is State else num_tokens // spec.tokens_per_page

    def _copy(self, source: Page, target: Page) -> None:
        copy = Copy(source, target, self.next_ticket)
        self.next_ticket += 1
        self.num_copied += 1
        self.copies.append(copy)
        self.queued.append(copy)

    def _forget(self, page: Page) -> None:
        self.cached.remove(page)
        page.key = None

    def _take(self, group: int, part: int = 0) -> Page:
        assert self.free() > 0
        if self.free() == len(self.idle):
            victim = self.idle[0]
            while below := self._followers(victim):
                victim = min(below, key=lambda page: _bytes(page.key[1]))
            self.idle.remove(victim)
            self._forget(victim)
            self.num_evicted += 1
        return Page(group, part)

    def _followers(self, page: Page) -> list[Page]:
        """Idle pages that are worthless without this one just before them."""
        (salt, tokens), spec = page.key, self.layout.groups[page.group]
        return [other for other in self.idle if spec.kind is Paged and other.group == page.group
                and other.key[0] == salt and other.key[1][: len(tokens)] == tokens
                and len(other.key[1]) == len(tokens) + spec.tokens_per_page]

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
