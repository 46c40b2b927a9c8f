"""The manager's promises, one small scene each; random histories are in test_manager_twin.py."""

import time

import pytest

from ridgeline.kv.manager import KVManager
from ridgeline.kv.news import StepNews
from ridgeline.spec.cache import CacheGroup, Paged, Shared, plan_layout
from tests.kv.layouts import LAYOUTS, layout, paged, state, window

A = list(range(100, 200))


class Scene(KVManager):
    """A manager that numbers its own steps."""

    last_step = 0

    def close(self, rows: dict[int, int] | None = None) -> StepNews:
        """Close the next step and leave it in flight."""
        self.last_step += 1
        return self.close_step(self.last_step, rows or {})

    def run_step(self) -> None:
        """A whole step, with nothing left in flight."""
        news = self.close()
        self.return_tickets(news.copies.ticket)
        self.step_finished(self.last_step)

    def compute(self, seq: int, tokens: list[int], salt: str = "", limit: int | None = None) -> int:
        """Open a sequence and compute all of it; returns its hit."""
        hit = self.open(seq, tokens, salt, limit)
        assert self.reserve(seq, len(tokens))
        self.run_step()
        self.commit(seq, len(tokens), tokens)
        self.check()
        return hit


def make(*groups: CacheGroup, pages: int = 50, caching: bool = True) -> Scene:
    return Scene(layout(*groups), pages, prefix_caching=caching)


@pytest.mark.parametrize(("length", "expected"), [(7, 4), (8, 7), (9, 8), (15, 12), (16, 15), (17, 16)])
def test_a_repeat_reuses_all_but_the_last_token(length: int, expected: int) -> None:
    """Prompts around whole blocks of 4 (C-16): full blocks and a part of one, never the whole prompt."""
    manager = make(paged(4))
    manager.compute(0, A[:length])
    for seq in (1, 2):
        assert manager.compute(seq, A[:length]) == expected
        manager.release(seq)
    manager.release(0)
    assert manager.compute(3, A[:length]) == expected


def test_part_of_a_block_is_reused_by_copy() -> None:
    """The longest common prefix into a cached block is copied before the first write; the block itself
    stays."""
    manager = make(paged(4))
    manager.compute(0, A[:8])
    assert manager.open(1, [*A[:6], 1, 2, 3]) == 6
    assert manager.table(1, 0) == manager.table(0, 0)
    assert manager.reserve(1, 9)
    news = manager.close({1: 5})
    table = manager.table(1, 0)
    assert news.copies.source == [manager.page_of(0, 0, 4)] and news.copies.target == [table[1]]
    assert table[0] == manager.page_of(0, 0, 0)
    assert news.tables[0].row == [5] * len(news.tables[0].index)
    assert {i: table[i] for i in range(3)} == dict(zip(news.tables[0].index, news.tables[0].page))
    assert manager.stats.num_hit_tokens == 6 and manager.stats.num_copied_pages == 1


def test_salts_and_limits() -> None:
    """Another tenant or adapter reuses nothing (C-17); a limit caps the hit, down to nothing."""
    manager = make(paged(4))
    manager.compute(0, A[:12], "x")
    assert manager.compute(1, A[:12], "y") == 0
    assert manager.compute(2, A[:12]) == 0
    assert manager.lookup(A[:12], "x") == 11
    assert [manager.lookup(A[:12], "x", limit) for limit in (0, 3, 8, 99)] == [0, 3, 8, 11]


def test_without_prefix_caching_nothing_is_kept() -> None:
    manager = make(paged(4), caching=False)
    manager.compute(0, A[:12])
    assert manager.compute(1, A[:12]) == 0
    manager.release(0)
    manager.release(1)
    assert manager.num_free_pages == 49 and manager.lookup(A[:12]) == 0


@pytest.mark.parametrize("groups", [(paged(4),), (paged(4), window(4, 6)), (paged(8, 4), window(4, 64))])
@pytest.mark.parametrize("length", [9, 10, 12, 13])
def test_choices_share_their_prompt(groups: tuple[CacheGroup, ...], length: int) -> None:
    """n = 4: each further choice recomputes the last prompt token; the one diverging block is copied, per
    group."""
    manager = make(*groups)
    manager.compute(0, A[:length])
    used = manager.num_used_pages
    for seq in (1, 2, 3):
        shared = manager.fork(0, seq, length - 1)
        assert shared == (length - 1 if len(groups) == 1 or groups[0].tokens_per_page == 4
                          else (length - 1) // 4 * 4)
    assert manager.num_used_pages == used
    for seq in range(4):
        assert manager.reserve(seq, length + 1)
    manager.check()
    diverging = sum(shared % group.tokens_per_page > 0 for group in groups)
    assert manager.stats.num_copied_pages == 3 * diverging


def test_a_window_drops_what_it_left() -> None:
    """Pages go as soon as no query from the last computed one on sees them; the plan nulls their entries."""
    manager = make(window(4, 6))
    manager.open(0, A[:40])
    nulled = []
    for num in range(1, 41):
        assert manager.reserve(0, num)
        news = manager.close({0: 3}).tables[0]
        nulled += [index for index, page in zip(news.index, news.page) if page == 0]
        manager.step_finished(num)
        manager.commit(0, num, A[:40])
        manager.check()
        first = max(0, (num - 6) // 4)  # the query at num - 1 sees keys from num - 6 on
        assert all((page == 0) == (index < first) for index, page in enumerate(manager.table(0, 0)))
    assert nulled == list(range(8)) and manager.num_used_pages == 2


def test_a_window_hit_needs_the_last_window_only() -> None:
    """Pages before the window may be gone, and the hit is as long as ever."""
    manager = make(window(4, 6), pages=12)
    manager.compute(0, A[:32])  # drops all but its last window, in order, to the idle list
    assert manager.open(1, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 0 and manager.reserve(1, 20)  # evicts the oldest
    assert manager.stats.num_evicted_pages > 0
    assert manager.lookup([*A[:32], 7]) == 32
    assert manager.lookup(A[:12]) == 0


def test_a_mixed_hit_is_what_all_groups_have() -> None:
    """The longest prefix valid in every group, whatever their page sizes."""
    manager = make(paged(4), window(6, 5), paged(8, 4), pages=60)
    manager.compute(0, A[:24])
    assert manager.lookup([*A[:24], 1]) == 24
    assert manager.lookup([*A[:22], 1, 2, 3]) == 20  # 22 in the first two; whole entries of 4 in the third
    manager = make(paged(4), window(6, 5), pages=60)
    manager.compute(0, A[:22])
    assert manager.lookup([*A[:22], 1]) == 18  # the window group has no full page beyond 18


def test_leaves_go_first_and_the_oldest_of_them() -> None:
    """Eviction eats a chain from its tail, and the least recently used chain before the others."""
    manager = make(paged(4), pages=9)
    manager.compute(0, A[:16])
    manager.compute(1, A[50:66])
    manager.release(1)
    manager.release(0)  # the newer chain
    manager.open(2, [1] * 40)
    for pages, left in ((1, (15, 12)), (3, (15, 4)), (4, (15, 0)), (6, (8, 0))):
        assert manager.reserve(2, 4 * pages)
        assert (manager.lookup(A[:16]), manager.lookup(A[50:66])) == left
        manager.check()


def test_a_leaf_that_came_late_still_goes_before_its_parent() -> None:
    """A copy pins a leaf beyond its sequence's end: it is idle later than its parents and yet evicted
    first."""
    manager = make(paged(4), pages=9)
    manager.compute(0, A[:12])
    manager.release(0)
    assert manager.open(1, A[:12]) == 11 and manager.reserve(1, 12)
    copies = manager.close().copies
    manager.release(1)
    manager.step_finished(manager.last_step)
    assert manager.num_pending_pages == 2
    manager.return_tickets(copies.ticket)
    manager.check()
    manager.open(2, [1] * 40)
    assert manager.reserve(2, 24)  # the five free pages and one more
    assert manager.lookup(A[:12]) == 8
    manager.check()


def test_pages_of_a_step_in_flight_wait_for_it() -> None:
    """What is freed while a step runs is handed out only after that step; a hit on it may share it at
    once."""
    manager = make(paged(4), pages=6)
    manager.compute(0, A[:18])
    manager.close({0: 0})
    manager.release(0)
    assert (manager.num_free_pages, manager.num_pending_pages, manager.num_used_pages) == (0, 5, 0)
    assert manager.open(1, [1] * 8) == 0 and not manager.reserve(1, 8)
    assert manager.missing_pages(1, 8) == 2
    assert manager.open(2, A[:18]) == 16 and manager.num_pending_pages == 1
    manager.check()
    manager.step_finished(manager.last_step)
    assert (manager.num_free_pages, manager.num_pending_pages) == (1, 0)
    manager.release(2)
    assert manager.reserve(1, 8) and manager.num_free_pages == 3


def test_tickets_pin_both_pages() -> None:
    """Neither side of a copy is reused before its ticket returns, even when nobody holds it any more."""
    manager = make(paged(4), pages=5)
    manager.compute(0, A[:8])
    manager.release(0)
    manager.open(1, A[:8])
    assert manager.reserve(1, 8)
    copies = manager.close({1: 0}).copies
    manager.release(1)
    manager.step_finished(manager.last_step)
    assert manager.num_pending_pages == 2 and manager.num_free_pages == 2
    manager.return_tickets(copies.ticket)
    assert manager.num_pending_pages == 0 and manager.num_free_pages == 4


def test_copies_that_no_plan_carried_are_cancelled() -> None:
    """A sequence preempted within the same planning leaves no copy behind, nor one that only fed another's
    copy."""
    manager = make(paged(4))
    manager.compute(0, A[:8])
    manager.release(0)
    manager.open(1, A[:8])
    assert manager.reserve(1, 8)
    assert manager.fork(1, 2, 6) == 6
    assert manager.reserve(2, 8) and manager.stats.num_copied_pages == 2
    manager.release(1)
    assert manager.stats.num_copied_pages == 2  # the second copy reads the first one's target
    manager.check()
    manager.release(2)
    manager.check()
    assert manager.stats.num_copied_pages == manager.num_used_pages == manager.num_pending_pages == 0
    assert manager.close().copies.ticket == []


def test_a_refused_reservation_changes_nothing() -> None:
    manager = make(paged(4), window(4, 8), pages=8)
    manager.compute(0, A[:8])
    before = manager.table(0, 0), manager.table(0, 1), manager.num_free_pages
    assert not manager.reserve(0, 20) and manager.missing_pages(0, 20) == 3
    assert before == (manager.table(0, 0), manager.table(0, 1), manager.num_free_pages)
    assert manager.reservable(0, 20) == 12 and manager.reserve(0, 12)
    manager.check()


def test_reserve_all_stops_at_the_first_that_does_not_fit() -> None:
    manager = make(paged(4), pages=4)
    for seq in range(3):
        manager.open(seq, A[:9])
    assert manager.reserve_all([0, 1, 2], [4, 9, 4]) == 1
    assert manager.reserve_all([1, 2], [4, 4]) == 2
    manager.check()


def test_a_sequence_without_a_row_keeps_its_news() -> None:
    """Table entries travel with the first plan that has a row for them, once."""
    manager = make(paged(4))
    manager.open(0, A[:8])
    manager.reserve(0, 8)
    assert manager.close({7: 1}).tables[0].row == []
    news = manager.close({0: 2}).tables[0]
    assert (news.row, news.index, tuple(news.page)) == ([2, 2], [0, 1], manager.table(0, 0))
    assert manager.close({0: 2}).tables[0].row == []


def test_what_was_not_committed_is_never_reused() -> None:
    """A failed step's blocks stay out of the index."""
    manager = make(paged(4))
    manager.open(0, A[:20])
    assert manager.reserve(0, 8)
    manager.run_step()
    manager.commit(0, 8, A[:20])
    assert manager.reserve(0, 20)
    manager.run_step()
    manager.release(0)
    assert manager.lookup(A[:20]) == 8


def test_equal_prompts_at_once_are_cached_once() -> None:
    """Four at the same time (C-16): each computes its own pages, one copy of them stays."""
    manager = make(paged(4))
    for seq in range(4):
        assert manager.open(seq, A[:8]) == 0 and manager.reserve(seq, 8)
    manager.run_step()
    for seq in range(4):
        manager.commit(seq, 8, A[:8])
    for seq in range(4):
        manager.release(seq)
    manager.check()
    assert manager.num_free_pages == 49 and manager.lookup(A[:8]) == 7


def test_a_state_is_reused_from_its_snapshots() -> None:
    """A hit is the longest prefix that has both blocks and a snapshot; a fork in the middle of a block begins
    at the one before it; a prompt that parts from a cached one leaves one there."""
    manager = make(paged(4), state(2))
    manager.open(0, A[:15])
    assert manager.next_mark(0, 0) == 12 and manager.reserve(0, 12)
    manager.commit(0, 12, A)
    assert manager.lookup(A[:15]) == 0
    assert manager.reserve(0, 15)
    manager.snapshot(0, 12, A)
    manager.commit(0, 15, A)
    assert manager.lookup(A[:15]) == manager.lookup(A[:13]) == 12 and manager.lookup(A[:12]) == 0
    assert manager.fork(0, 1, 14) == 12 and manager.reserve(1, 15)
    assert not set(manager.table(0, 1)) & set(manager.table(1, 1))
    manager.open(2, A[:9] + list(range(20)))
    assert manager.next_mark(2, 0) == 8 and manager.next_mark(2, 8) == 28
    manager.check()


def test_a_state_without_snapshots_can_be_forked_at_rest() -> None:
    """A fork shares a state that stands exactly there, then copies it."""
    manager = make(paged(4), state(2))
    manager.compute(0, A[:12])
    assert manager.compute(1, A[:12]) == 0
    assert manager.fork(0, 2, 11) == 0  # the state is at 12 already
    assert manager.fork(0, 3, 12) == 12
    assert manager.reserve(0, 13)
    assert manager.fork(0, 4, 12) == 0  # a step may be rewriting it
    assert manager.reserve(3, 13)
    assert manager.stats.num_copied_pages == 2  # of the state; the next token begins a block
    assert not set(manager.table(0, 1)) & set(manager.table(3, 1))
    manager.check()


def test_shared_layers_take_no_pages() -> None:
    """A layer that reads another's cache has no group: its pages are the owner's."""
    plan = plan_layout([(Paged(bytes_per_entry=64),), (Shared(layer=0),)], block_tokens=4)
    manager = Scene(plan, 10)
    manager.open(0, A[:8])
    assert manager.reserve(0, 8) and manager.num_used_pages == 2
    assert plan.group_of(1) == plan.group_of(0)


def test_entries_of_several_tokens_are_reused_whole() -> None:
    """The layout tells the coarsest entry of a group; a hit never ends inside one."""
    layer = (Paged(bytes_per_entry=64), Paged(bytes_per_entry=64, tokens_per_entry=4))
    plan = plan_layout([layer], block_tokens=8)
    assert [group.tokens_per_entry for group in plan.groups] == [4]
    manager = Scene(plan, 10)
    manager.compute(0, A[:8])
    assert manager.lookup(A[:8]) == 4


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("pages", [5, 9, 16])
def test_what_fits_runs_alone(name: str, pages: int) -> None:
    """A request that the door lets in reaches its end alone, token by token, cold and again on its own cache
    (C-18)."""
    manager = Scene(LAYOUTS[name], pages)
    longest = manager.largest_request(60)
    assert longest == 0 or manager.fits(longest)
    assert longest == 60 or not manager.fits(longest + 1)
    for seq in range(3 if longest else 0):
        tokens = A[:longest]
        done = manager.open(seq, tokens)
        while done < longest:
            stop = manager.reservable(seq, longest)
            assert stop > done, "a request that fits is stuck"
            assert manager.reserve(seq, stop)
            manager.run_step()
            manager.commit(seq, stop, tokens)
            manager.check()
            done = stop
        manager.release(seq)


@pytest.mark.parametrize("caching", [False, True])
def test_decode_bookkeeping_is_cheap(caching: bool) -> None:
    """256 decode rows, a new page for one in sixteen: reserve_all + commit_all stay far below a step's time.

    The bound is three times what a quiet machine needs (about 0.15 ms), in CPU seconds of this thread, best
    of the steps.
    """
    manager = Scene(layout(paged(16)), 6000, prefix_caching=caching)
    seqs, texts = list(range(256)), [[seq] * (17 + seq % 16) for seq in range(256)]
    rows = {seq: seq for seq in seqs}
    for seq in seqs:
        manager.compute(seq, texts[seq])
    times_s = []
    for _ in range(64):
        for text in texts:
            text.append(7)
        wanted = [len(text) for text in texts]
        start = time.thread_time()
        assert manager.reserve_all(seqs, wanted) == 256
        manager.commit_all(seqs, wanted, texts)
        times_s.append(time.thread_time() - start)
        manager.close(rows)
        manager.step_finished(manager.last_step)
    assert min(times_s) < 0.5e-3
    manager.check()
