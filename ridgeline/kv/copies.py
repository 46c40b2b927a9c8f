"""Page copies under tickets: queued for the next plan, then under way, and their pages pinned until they are
done."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.kv.news import CopyNews
from ridgeline.kv.pool import PagePool


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One page to be copied within the arena."""

    source: int
    target: int
    ticket: int


class CopyQueue:
    """The copies of one manager. num_copied counts those not cancelled."""

    def __init__(self, pool: PagePool) -> None:
        self.num_copied = 0
        self._pool = pool
        self._queued: list[Copy] = []
        self._open: dict[int, Copy] = {}  # queued or under way
        self._next_ticket = 0

    def add(self, source: int, target: int) -> None:
        """Copy with the next plan."""
        copy = Copy(source=source, target=target, ticket=self._next_ticket)
        self._next_ticket += 1
        self.num_copied += 1
        self._pool.pin(source)
        self._pool.pin(target)
        self._queued.append(copy)
        self._open[copy.ticket] = copy

    def take(self) -> CopyNews:
        """The queued copies, for the plan that is being closed."""
        queued, self._queued = self._queued, []
        return CopyNews(source=[c.source for c in queued], target=[c.target for c in queued],
                        ticket=[c.ticket for c in queued])

    def cancel_unneeded(self) -> None:
        """Drop queued copies whose target nobody holds and no later copy reads: from the last, so a chain
        goes whole."""
        kept = []
        for copy in reversed(self._queued):
            if self._pool.refs[copy.target] == 0 and self._pool.num_pins(copy.target) == 1:
                self.num_copied -= 1
                self.done((copy.ticket,))
            else:
                kept.append(copy)
        self._queued = kept[::-1]

    def done(self, tickets: Iterable[int]) -> None:
        """These copies need their pages no more."""
        for ticket in tickets:
            copy = self._open.pop(int(ticket))
            self._pool.unpin(copy.source)
            self._pool.unpin(copy.target)

    def pins(self) -> Counter[int]:
        """Page -> pins, from the open tickets alone."""
        return Counter(page for copy in self._open.values() for page in (copy.source, copy.target))

    def check(self) -> None:
        """Queued copies have tickets, and nothing is copied onto what is cached or onto the null page."""
        assert all(self._open[copy.ticket] is copy for copy in self._queued)
        assert all(copy.source and copy.target and copy.source != copy.target for copy in self._open.values())
