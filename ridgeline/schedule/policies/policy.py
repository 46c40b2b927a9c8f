"""What a scheduling policy is asked. It orders and admits; it never allocates and never reads a clock."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ridgeline.schedule.request import Request
from ridgeline.schedule.speculate import Shape
from ridgeline.schedule.targets import NO_TARGETS, Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a policy may be made with. price: seconds of a step, for policies that predict time; None where
    nobody can tell, which such a policy refuses."""

    targets: Targets = NO_TARGETS
    price: Callable[[Shape], float] | None = None


NO_NEEDS = Needs()


class Policy(Protocol):
    """Ranks requests. The rank serves admission, chunks, pages and (from the other end) the choice of a
    victim. passes: how many of those before it that wait a request may pass; None: there is no bound."""

    passes: int | None

    def order(self, request: Request) -> tuple[float, ...]:
        """The rank, fixed for the request's life: smaller is admitted first and preempted last. Unique: it
        ends with the request's number."""
        ...

    def outranks(self, waiting: Request, running: Request) -> bool:
        """True when `waiting` may take the row and the pages of `running`. It must imply the smaller
        order."""
        ...
