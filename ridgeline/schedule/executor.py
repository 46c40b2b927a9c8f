"""The door between the loop and whatever runs a step: the live runner, a group of them, or the simulator's
ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.schedule.course import Course, Future
from ridgeline.schedule.plan import StepPlan, StepResult
from ridgeline.spec.cache import CacheLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What an executor offers, fixed for its life.

    num_pages counts page 0, which is never given out (the null page). num_host_pages: of an arena in host
    memory for pages of the same size, its null page too; 0 without one. prompt_borders: ascending prompt
    lengths past which cached entries are computed otherwise (rotary embeddings that scale by length); prompts
    share a prefix only when no border lies between their lengths.
    """

    layout: CacheLayout
    num_pages: int
    num_rows: int
    max_step_tokens: int
    max_model_len: int
    vocab_size: int
    prompt_borders: tuple[int, ...] = ()
    num_host_pages: int = 0


class Executor(Protocol):
    """Runs plans in the order begun. At most `max_in_flight` plans are begun and not yet finished."""

    max_in_flight: int

    def capacity(self) -> Capacity: ...

    def begin(self, plan: StepPlan, now: float) -> int:
        """Start a step; returns its ticket at once (the work goes on beside the caller)."""
        ...

    def ready_at(self, ticket: int) -> float | None:
        """When the step ends, in the clock's seconds, or None when only waiting tells."""
        ...

    def finish(self, ticket: int, now: float) -> StepResult:
        """Wait for a step. Tickets are finished in the order begun.

        EngineDeadError when the executor itself is broken; MemoryError when there was none for this step, of
        which nothing counts; any other error fails the rows of this step alone.
        """
        ...


class Oracle(Executor, Protocol):
    """An executor that can tell what steps will bring, as none that computes can: a simulation."""

    def ready_at(self, ticket: int) -> float: ...

    def foresee(self, course: Course, until_s: float, quiet_s: float) -> Future | None:
        """The next steps that end by until_s: those in flight, and decodes behind them of the rows that have
        some left to feed, each begun when the oldest in flight is finished. And one more where it ends
        nobody, by quiet_s: who comes at until_s is planned for behind that. None where they are not more than
        those in flight."""
        ...

    def leap(self, num_steps: int, plans: Sequence[StepPlan]) -> Sequence[int]:
        """So many steps of what was foreseen are over; `plans` are in flight now. Their tickets."""
        ...
