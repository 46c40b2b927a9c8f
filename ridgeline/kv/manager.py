"""The door of the KV cache's bookkeeping: who holds which page. Called by the scheduler only; owns no bytes.

It knows the four cache kinds (kinds.py) and no attention type, no row's meaning and no clock. Sequences are named by
the scheduler's request numbers. A page is an index into the one arena; page 0 is the null page.

One step of the scheduler, in order:
  1. results of the oldest step arrive: return_tickets(result.returned_tickets), step_finished(step),
     then commit_all / commit for what is now computed, release for what ended
  2. plan: open new sequences, reserve_all / reserve what the step will write, fork
  3. news = close_step(step, rows): table entries and copies that the plan carries
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.spec.cache import CacheLayout


@dataclass(slots=True)
class CacheStats:
    """Counts since the start, in tokens or pages. A sequence is counted once it got its first pages.

    num_query_tokens, num_hit_tokens: tokens of opened sequences, and those reused from the cache.
    """

    num_queries: int = 0
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_evicted_pages: int = 0
    num_copied_pages: int = 0


@dataclass(frozen=True, slots=True)
class TableNews:
    """Entries of one group's block table that changed: table[row[i]][index[i]] = page[i]. Page 0: no longer needed."""

    row: list[int]
    index: list[int]
    page: list[int]


@dataclass(frozen=True, slots=True)
class CopyNews:
    """Copies to run in order before the step's forward; both pages stay pinned until the ticket returns.

    Both spaces are 0, the device arena.
    """

    source: list[int]
    target: list[int]
    ticket: list[int]


@dataclass(frozen=True, slots=True)
class StepNews:
    """What a plan carries: one TableNews a cache group, and the copies."""

    tables: tuple[TableNews, ...]
    copies: CopyNews


class KVManager:
    """Pages, block tables, the prefix index and copy-on-write for all sequences of one engine.

    Misuse (an unknown sequence, a commit that goes back) is an AssertionError; running out of pages is a return value.
    """

    def __init__(self, layout: CacheLayout, num_pages: int, *, prefix_caching: bool = True) -> None:
        """num_pages counts the null page, as Capacity does."""
        raise NotImplementedError

    # ---- a sequence's life

    def open(self, seq: int, tokens: Sequence[int], salt: str = "", limit: int | None = None) -> int:
        """A new sequence `seq`; returns how many of `tokens` are already in the cache (its num_computed).

        The longest cached prefix is shared, down to a part of a block (the first write into it copies the page). It
        is at most len(tokens) - 1, since the last token must be computed, and at most `limit` (0: reuse nothing; prompt
        log-probabilities from position p need limit p - 1). Takes no free page and cannot fail; it does hold the
        pages it shares, so a sequence that cannot go on should be released, not left open. Sequences of different
        salt never share.
        """
        raise NotImplementedError

    def lookup(self, tokens: Sequence[int], salt: str = "", limit: int | None = None) -> int:
        """What open() would return, without opening (routing, admission order)."""
        raise NotImplementedError

    def reserve(self, seq: int, num_tokens: int) -> bool:
        """Make positions [num_computed, num_tokens) writable: new pages, and copies of shared ones.

        False, and nothing changed, when there are not enough pages now. Then look at missing_pages() and
        num_pending_pages: pages of sequences just released come back only when the step in flight has finished
        (step_finished), so a scheduler preempts no more than until missing <= pending, and otherwise waits a step.
        A decode with one step in flight reserves scheduled + 1.
        """
        raise NotImplementedError

    def reserve_all(self, seqs: Sequence[int], num_tokens: Sequence[int]) -> int:
        """reserve() for each pair in order until one fails; returns how many succeeded. The fast way for decodes."""
        raise NotImplementedError

    def reservable(self, seq: int, num_tokens: int) -> int:
        """The largest count <= num_tokens for which reserve() would succeed now (>= what is already reserved)."""
        raise NotImplementedError

    def missing_pages(self, seq: int, num_tokens: int) -> int:
        """Pages that reserve(seq, num_tokens) lacks now; 0 when it would succeed."""
        raise NotImplementedError

    def commit(self, seq: int, num_computed: int, tokens: Sequence[int]) -> None:
        """Positions < num_computed are computed and hold `tokens` (at least that many known).

        Full blocks enter the prefix index and pages that left a window are dropped (all that the query at
        num_computed - 1 cannot see, so that a fork at the last computed token stays exact). Never called for a failed
        step: what it wrote stays out of the index. num_computed never goes back.
        """
        raise NotImplementedError

    def commit_all(self, seqs: Sequence[int], num_computed: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """commit() for each triple. The fast way for decodes."""
        raise NotImplementedError

    def fork(self, parent: int, child: int, num_tokens: int) -> int:
        """A new sequence `child` that shares the parent's pages; returns its num_computed, at most num_tokens.

        num_tokens <= the parent's num_computed. Usually returns num_tokens; less where a cache entry covers several
        tokens; 0 (the child shares nothing and computes everything) where a group no longer has that prefix: a window
        that moved on, a state that ran ahead. Whoever writes a shared page first copies it, in each group. Takes no
        free page and cannot fail.
        """
        raise NotImplementedError

    def release(self, seq: int) -> None:
        """The sequence ends or is preempted. Its indexed pages stay cached; all are reusable once no step that was
        closed before now is in flight. Queued copies that nobody needs any more are cancelled."""
        raise NotImplementedError

    # ---- steps

    def close_step(self, step: int, rows: Mapping[int, int]) -> StepNews:
        """The plan of `step` is complete; steps come in growing order. rows: sequence -> runner row, for all that have
        a row; a sequence without one keeps its news for a later step. Pages freed from now on count as referenced
        by this step until step_finished(step)."""
        raise NotImplementedError

    def step_finished(self, step: int) -> None:
        """This step and all before have finished on the device: what was freed while they ran is reusable."""
        raise NotImplementedError

    def return_tickets(self, tickets: Iterable[int]) -> None:
        """These copies are done: unpin their pages."""
        raise NotImplementedError

    # ---- numbers

    @property
    def stats(self) -> CacheStats:
        raise NotImplementedError

    @property
    def num_free_pages(self) -> int:
        """Pages that can be handed out now, cached ones that may be evicted included."""
        raise NotImplementedError

    @property
    def num_pending_pages(self) -> int:
        """Pages that nobody holds but that a step in flight or a copy still references."""
        raise NotImplementedError

    @property
    def num_used_pages(self) -> int:
        """Pages that live sequences hold."""
        raise NotImplementedError

    @property
    def usage(self) -> float:
        """Share of the arena that live sequences hold, 0..1."""
        raise NotImplementedError

    @property
    def num_seqs(self) -> int:
        raise NotImplementedError

    def pages_to_run(self, num_tokens: int) -> int:
        """Pages that one sequence needs to grow to num_tokens known tokens, stepping in small chunks."""
        raise NotImplementedError

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence of num_tokens known tokens can ever run, alone."""
        raise NotImplementedError

    def largest_request(self, most: int) -> int:
        """The largest num_tokens <= most that fits()."""
        raise NotImplementedError

    def table(self, seq: int, group: int) -> tuple[int, ...]:
        """The block table of one group: page of each index, 0 where none is needed."""
        raise NotImplementedError

    def page_of(self, seq: int, group: int, position: int) -> int:
        """The page that holds `position` in a Paged or Window group, 0 if it left the window."""
        raise NotImplementedError

    def check(self) -> None:
        """Re-derive everything from the tables, the pins and the index; AssertionError on any difference."""
        raise NotImplementedError
