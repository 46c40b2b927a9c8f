"""What a scheduling policy is asked. It orders, admits and sizes; it never allocates and never reads a
clock."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from ridgeline.schedule.plan import StepPlan
from ridgeline.schedule.ranked import Waiting
from ridgeline.schedule.request import Request
from ridgeline.schedule.rows import Bool, Rows
from ridgeline.schedule.speculate import Shape
from ridgeline.schedule.targets import NO_TARGETS, Targets

LOOK = 8  # waiting requests without room that a step tries before it gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a policy may be made with. price: seconds of a step, for policies that predict time; None where
    nobody can tell, which such a policy refuses."""

    targets: Targets = NO_TARGETS
    price: Callable[[Shape], float] | None = None


NO_NEEDS = Needs()


class View(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a policy sees when a step is planned: to read, never to change.

    most_tokens: that a step can hold. in_flight: steps begun and not committed. held: steps planned in a row
    up to now that left rows out. cached: prompt tokens of a waiting request that the cache holds.
    """

    rows: Rows
    queue: Waiting
    most_tokens: int
    in_flight: int
    held: int
    cached: Callable[[Request], int]


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step may hold. Rows that decode take their tokens first, then prompts that run, then starts.

    tokens: of the step. starts: waiting requests that may start; None: all that have room. rows [num_rows]:
    the rows that take part, None for all; a step that would be empty with some is planned again with all.
    whole: a prompt starts only if the step takes all of it, but for the step's first.
    """

    tokens: int
    starts: int | None = None
    rows: Bool | None = None
    whole: bool = False


class Policy:
    """Ranks requests, says who is tried first, and how large a step is: as it stands, first come, first
    served, in steps as large as can be. A policy overrides what it does otherwise.

    patience: how often the eldest, or one that is first in line and has no room, is passed before nobody
    passes it any more (`admit`, which also proves that nobody starves, whatever a policy says). passes: of
    those that came before a request and rank before it, how many it may pass; by_tenant: of its own tenant's
    alone. passes None: there is no bound. lines_up: the line is the queue's head, whatever runs
    and whenever, and of a step the tokens alone are limited.
    """

    patience = 16
    passes: int | None = LOOK
    by_tenant = False
    lines_up = True

    def order(self, request: Request) -> tuple[float, ...]:
        """The rank, fixed for the request's life: smaller has the first call on pages and on prompt tokens
        and is preempted last. Unique: it ends with the request's number."""
        return (request.arrived_s, request.number)

    def outranks(self, waiting: Request, running: Request) -> bool:
        """True when `waiting` may take the row and the pages of `running`, which ranks behind it."""
        return False

    def limits(self, view: View, now: float) -> Limits:
        """The size of the next step."""
        return Limits(tokens=view.most_tokens)

    def line(self, view: View, now: float) -> Iterable[Request]:
        """Waiting requests in the order in which they are to start; as many as can matter. Read one by one
        while those named before start, so that it may hang on who did. Whom it names twice counts once."""
        return view.queue.head(view.rows.num_free + LOOK)

    def started(self, request: Request) -> None:
        """The request has its row."""

    def leaves(self, request: Request) -> None:
        """The request has lost its row: it has ended, or is preempted."""

    def observe(self, plan: StepPlan, took_s: float) -> None:
        """A step was committed."""
