"""A request as the scheduler sees it: three counters over one list of known tokens, not a phase."""

import enum
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.plan import RowLogprobs
from ridgeline.spec.sampling import SamplingParams


class Status(enum.Enum):
    """Where a request stands. PREPARING waits for something outside (pixels, a transfer, its fork's parent)."""

    PREPARING = "preparing"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Finish(enum.StrEnum):
    """Why a request ended. STOP: an end id or stop token; LENGTH: max_tokens or the context border."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """What the loop is given. id is the caller's; n > 1 is asked as one NewRequest and forks inside.

    priority: lower is sooner. cache_salt keeps prefixes of different tenants or adapters apart. arrived_s: the clock's
    seconds when the door took it.
    """

    id: str
    prompt: NDArray[np.int32]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    arrived_s: float = 0.0
    tenant: str = ""


@dataclass(slots=True)
class Request:
    """One choice of a request. Written by the scheduler only.

    tokens [known]: prompt and committed output. scheduled: tokens of it (placeholders included) given to a plan.
    computed: tokens whose step has come back. in_flight: placeholders, i.e. outputs that plans will bring.
    """

    number: int
    id: str
    choice: int
    params: SamplingParams
    seed: int
    tokens: list[int]
    num_prompt: int
    stop_token_ids: frozenset[int]
    max_tokens: int
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    arrived_s: float = 0.0
    status: Status = Status.WAITING
    row: int = -1
    scheduled: int = 0
    computed: int = 0
    in_flight: int = 0
    num_cached: int = 0
    parent: int | None = None
    finish: Finish | None = None
    prompt_logprobs_done: int = 1
    num_preemptions: int = 0
    wasted_tokens: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_step: int = -1

    @property
    def known(self) -> int:
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def pending(self) -> int:
        """Tokens that the next plan may take: known + placeholders in flight - scheduled."""
        return len(self.tokens) + self.in_flight - self.scheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """News of one choice, emitted after a commit.

    new_tokens: ids in order (the end id included, marked by finish). num_prompt, num_cached: for usage; set always.
    error: the text for finish ERROR. times_s: {"arrived", "first_scheduled", "first_token", "finished"} at the end.
    """

    id: str
    choice: int
    new_tokens: tuple[int, ...]
    finish: Finish | None = None
    stop_token: int | None = None
    error: str | None = None
    logprobs: tuple[RowLogprobs, ...] = ()
    prompt_logprobs: tuple[tuple[int, RowLogprobs], ...] = ()
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0
    times_s: dict[str, float] = field(default_factory=dict)
    account: dict[str, float | int | str] = field(default_factory=dict)
