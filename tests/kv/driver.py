"""Drives a manager, its slow twin and the arena stand-in through one random history, as a scheduler would."""

import random
from dataclasses import dataclass

from ridgeline.kv.manager import KVManager
from ridgeline.spec.cache import CacheLayout
from tests.kv.host import Host
from tests.kv.machine import Machine, Work, histories
from tests.kv.twin import Twin

SALTS = ("", "", "", "tenant")


@dataclass(eq=False)
class Live:
    """A sequence that knows its own future.

    Tokens [0, known) are known, [0, scheduled) given to a step, [0, computed) come back from one.
    """

    seq: int
    tokens: tuple[int, ...]
    history: tuple[int, ...]
    known: int
    salt: str
    scheduled: int = 0
    computed: int = 0
    reserved: int = 0
    mark: int = 0
    away: bool = False


@dataclass(eq=False)
class Flight:
    step: int
    work: list[tuple[Live, int]]


class Driver:
    """One random history. Every action compares the two managers and runs check().

    Half of the histories are lazy, as the scheduler is: pages are reserved to the end of a block, and the
    manager hears of what was computed only when a block is full, before a fork and (perhaps) at the end.
    """

    def __init__(self, layout: CacheLayout, num_pages: int, seed: int, caching: bool = True,
                 num_host_pages: int = 0) -> None:
        self.random = random.Random(seed)
        self.block = layout.block_tokens
        stride, most = self.block * self.random.choice([0, 1, 3]), self.random.choice([None, 1, 3])
        one_bytes = sum(group.state_pages for group in layout.groups) * layout.page_bytes
        self.manager = KVManager(layout, num_pages, prefix_caching=caching, snapshot_stride=stride,
                                 snapshot_bytes=None if most is None else most * one_bytes,
                                 num_host_pages=num_host_pages)
        self.twin = Twin(layout, num_pages, caching, stride, most, host=Host(num_host_pages or 1, layout))
        self.machine = Machine(layout, num_pages, num_host_pages)
        self.tiers = num_host_pages > 0
        self.live: dict[int, Live] = {}
        self.rows: dict[int, int] = {}
        self.flights: list[Flight] = []
        self.tickets: list[int] = []
        self.next_seq = self.next_step = 0
        self.prompts: list[tuple[int, ...]] = []
        self.lazy = self.random.random() < 0.5

    def run(self, num_actions: int) -> None:
        actions = [self.open] * 3 + [self.plan] * 6 + [self.finish] * 5 + [self.fork] * 2 + [self.end] * 2
        if self.tiers:
            actions += [self.put_away] * 2
        for _ in range(num_actions):
            self.random.choice(actions)()
            self.compare()
        while self.flights:
            self.finish()
        self.manager.return_tickets(self.tickets)
        for seq in list(self.live):
            self.drop(seq)
        self.manager.check()
        assert self.manager.num_used_pages == self.manager.num_pending_pages == self.manager.num_seqs == 0

    def compare(self) -> None:
        manager, twin = self.manager, self.twin
        manager.check()
        assert manager.num_free_pages == twin.free()
        assert manager.num_pending_pages == len(twin.pending)
        assert manager.num_used_pages == len(twin.held())
        stats = manager.stats
        assert (stats.num_evicted_pages, stats.num_copied_pages, stats.num_hit_tokens,
                stats.num_host_hit_tokens) == (
            twin.num_evicted, twin.num_copied, twin.num_hit_tokens, twin.num_host_hit_tokens)
        for seq, state in twin.seqs.items():
            for group, table in enumerate(state.tables):
                assert [page > 0 for page in manager.table(seq, group)] == [bool(page) for page in table]

    # ---- actions

    def open(self) -> None:
        if len(self.live) >= 6:
            return
        tokens = self.text()
        live = self.enter(tokens, self.random.randrange(1, len(tokens)), self.random.choice(SALTS))
        limit = self.random.choice([None, None, None, self.random.randrange(len(tokens))])
        prompt = tokens[: live.known]
        promised = self.manager.lookup(list(prompt), live.salt, limit)
        here = self.manager.lookup(list(prompt), live.salt, limit, host=False)
        assert here == self.twin.hit(prompt, live.salt, limit, host=False)
        hit = self.manager.open(live.seq, list(prompt), live.salt, limit)
        assert hit == promised == self.twin.open(live.seq, prompt, live.salt, limit, live.tokens)
        away = sum(map(len, self.twin.seqs[live.seq].away))
        assert self.manager.num_away_pages(live.seq) == away
        assert self.manager.why_not_more(live.seq, list(prompt))
        live.scheduled = live.computed = live.reserved = hit
        live.mark = self.next_mark(live)

    def text(self) -> tuple[int, ...]:
        """A sequence of two words' worth of token ids that often begins as an earlier one did."""
        fresh = tuple(self.random.choices(range(2), k=self.random.randrange(2, 40)))
        if self.prompts and self.random.random() < 0.8:
            old = self.random.choice(self.prompts)
            kept = self.random.randrange(len(old) + 1)
            fresh = old[:kept] + fresh[: self.random.randrange(1, len(fresh) + 1)]
        if len(fresh) < 2:
            fresh += (0,)
        self.prompts.append(fresh)
        return fresh

    def enter(self, tokens: tuple[int, ...], known: int, salt: str) -> Live:
        live = Live(self.next_seq, tokens, tuple(histories(salt, tokens)), known, salt)
        self.live[live.seq] = live
        self.next_seq += 1
        return live

    def plan(self) -> None:
        """A step over some sequences, forks and preemptions amid it; what finds no pages is left out."""
        if len(self.flights) >= 3:
            return
        work, chosen = [], [live for live in self.live.values() if self.random.random() < 0.7]
        for live in chosen:
            if live.seq not in self.live or (live.away and not self.resume(live)):
                continue
            if live.scheduled == live.known and live.known < len(live.tokens):
                live.known += 1
            count = min(live.known - live.scheduled, self.random.choice([1, 1, 3, 8, 40]))
            at_mark = live.scheduled == live.mark
            stop = min(live.scheduled + count, self.next_mark(live))
            if count == 0 or (stop > live.reserved and not self.reserve(live, stop)):
                continue
            work.append((live, stop))
            if at_mark:  # nothing may be written behind the state before it is kept
                self.manager.snapshot(live.seq, live.mark, live.tokens[: live.known])
                self.twin.snapshot(live.seq, live.mark, live.tokens)
            live.mark = self.next_mark(live)
            if self.random.random() < 0.1:
                self.fork()
            if self.random.random() < 0.1:  # preempted in the middle of planning
                self.end()
            if self.tiers and self.random.random() < 0.1:
                self.put_away()
        work = [(live, stop) for live, stop in work if live.seq in self.live and not live.away]
        free_rows = [row for row in range(8) if row not in self.rows.values()]
        for live, _ in work:
            if live.seq not in self.rows:
                self.rows[live.seq] = free_rows.pop(self.random.randrange(len(free_rows)))
        step, self.next_step = self.next_step, self.next_step + 1
        news = self.manager.close_step(step, self.rows)
        assert news.copies.ticket == [copy.ticket for copy in self.twin.queued]
        self.twin.close_step(step)
        self.machine.plan(news, [Work(self.rows[live.seq], live.scheduled, stop, live.history)
                                 for live, stop in work])
        for live, stop in work:
            live.scheduled = stop
        self.flights.append(Flight(step, work))

    def next_mark(self, live: Live) -> int:
        """The first mark past what is scheduled."""
        mark = self.manager.next_mark(live.seq, live.scheduled)
        assert mark == self.twin.next_mark(live.seq, live.scheduled)
        return mark

    def reserve(self, live: Live, stop: int) -> bool:
        manager, seq = self.manager, live.seq
        num_tokens = -(-stop // self.block) * self.block if self.lazy else stop
        reservable, missing = manager.reservable(seq, num_tokens), manager.missing_pages(seq, num_tokens)
        assert missing == max(0, self.twin.lacking(seq, num_tokens)[0])
        assert (missing == 0) == (reservable == num_tokens)
        if self.random.random() < 0.5:
            done = manager.reserve(seq, num_tokens)
        else:
            done = manager.reserve_all([seq], [num_tokens]) == 1
        assert done == self.twin.reserve(seq, num_tokens) == (missing == 0)
        if done and self.lazy:
            live.reserved = num_tokens
        return done

    def finish(self) -> None:
        """The oldest step ends: its copies, its writes, its reads; then the host hears of it."""
        if not self.flights:
            return
        flight = self.flights.pop(0)
        if self.tiers and self.random.random() < 0.05:
            self.lose(flight)
            return
        self.tickets += self.machine.run_oldest().ticket
        if self.random.random() < 0.3:
            self.return_some()
        self.manager.step_finished(flight.step)
        self.twin.step_finished(flight.step)
        self.return_some()
        for live, stop in flight.work:
            if self.live.get(live.seq) is not live:
                continue
            if self.random.random() < 0.03:  # the row's logits were not finite
                self.drop(live.seq)
                continue
            before, live.computed = live.computed, stop
            if live.away:
                continue
            if not self.lazy or before // self.block < stop // self.block:
                self.commit(live)

    def lose(self, flight: Flight) -> None:
        """The oldest step raised before anything was done: its sequences end, its copies never ran."""
        lost = self.machine.lose_oldest().ticket
        broken = self.manager.lose_tickets(lost)
        assert broken == self.twin.lose(lost)
        self.machine.distrust([self.live[seq].history for seq in broken])
        self.manager.step_finished(flight.step)
        self.twin.step_finished(flight.step)
        for live in [live for live, _ in flight.work] + [self.live[seq] for seq in broken]:
            if self.live.get(live.seq) is live:
                self.drop(live.seq)

    def put_away(self) -> None:
        """Preempted by swap: what is scheduled is kept, with what the steps in flight still write."""
        running = [live for live in self.live.values() if live.scheduled and not live.away]
        if not running:
            return
        live = self.random.choice(running)
        self.commit(live)
        done = self.manager.put_away(live.seq, live.scheduled)
        assert done == self.twin.put_away(live.seq, live.scheduled)
        if done:
            live.away = True
            self.rows.pop(live.seq, None)

    def resume(self, live: Live) -> bool:
        """Once its last step is back: whether it may run again; it is given up when the host has it not."""
        kept = self.manager.kept_away(live.seq)
        assert kept == self.twin.kept_away(live.seq)
        if kept is None or live.computed < live.scheduled:
            return False
        if kept == 0:
            self.drop(live.seq)
            return False
        assert kept == live.scheduled
        live.reserved = kept
        self.commit(live)
        assert self.manager.num_away_pages(live.seq) == sum(map(len, self.twin.seqs[live.seq].away))
        if not self.reserve(live, kept + 1):
            return False
        live.away = False
        live.mark = self.next_mark(live)
        return True

    def commit(self, live: Live) -> None:
        known = live.tokens[: max(live.computed, live.known)]
        if self.random.random() < 0.5:
            self.manager.commit(live.seq, live.computed, known)
        else:
            self.manager.commit_all([live.seq], [live.computed], [known])
        self.twin.commit(live.seq, live.computed, known)

    def return_some(self) -> None:
        kept = [ticket for ticket in self.tickets if self.random.random() < 0.2]
        done = [ticket for ticket in self.tickets if ticket not in kept]
        self.manager.return_tickets(done)
        for ticket in done:
            self.twin.done(ticket)
        self.tickets = kept

    def fork(self) -> None:
        if not self.live or len(self.live) >= 6:
            return
        parent = self.random.choice(list(self.live.values()))
        if parent.away:
            return
        self.commit(parent)
        computed = parent.computed
        wanted = self.random.choice([computed, max(0, computed - 1), self.random.randrange(computed + 1)])
        own = tuple(self.random.choices(range(2), k=self.random.randrange(1, 9)))
        child = self.enter(parent.tokens[:wanted] + own, wanted + 1, parent.salt)
        shared = self.manager.fork(parent.seq, child.seq, wanted)
        assert shared == self.twin.fork(parent.seq, child.seq, wanted, parent.tokens, child.tokens)
        child.scheduled = child.computed = child.reserved = shared
        child.mark = self.next_mark(child)

    def end(self) -> None:
        if self.live:
            live = self.random.choice(list(self.live.values()))
            if self.random.random() < 0.5 and not live.away:
                self.commit(live)
            self.drop(live.seq)

    def drop(self, seq: int) -> None:
        live = self.live.pop(seq)
        self.rows.pop(seq, None)
        self.manager.release(seq)
        self.twin.release(seq, live.tokens)


def run_history(layout: CacheLayout, num_pages: int, seed: int, num_actions: int,
                caching: bool = True, num_host_pages: int = 0) -> Driver:
    """One whole random history; returns the driver for its counts."""
    driver = Driver(layout, num_pages, seed, caching, num_host_pages)
    driver.run(num_actions)
    return driver
