"""What a scheduling policy is asked. It orders and admits; it never allocates and never reads a clock."""

from typing import Protocol

from ridgeline.schedule.request import Request


class Policy(Protocol):
    """Ranks requests. The rank serves admission, chunks, pages and (from the other end) the choice of a
    victim."""

    def order(self, request: Request) -> tuple[float, ...]:
        """The rank, fixed for the request's life: smaller is admitted first and preempted last. Unique: it
        ends with the request's number."""
        ...

    def outranks(self, waiting: Request, running: Request) -> bool:
        """True when `waiting` may take the row and the pages of `running`. It must imply the smaller
        order."""
        ...
