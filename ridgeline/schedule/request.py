"""A request as the scheduler sees it, and the news of it that leaves the scheduler.

The three counters (known, scheduled, computed) of a request that runs live in `rows.py`, as arrays over
runner rows; a request that does not run has scheduled = computed = 0 by definition, so nothing is kept twice.
"""

import enum
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.plan import RowLogprobs
from ridgeline.schedule.waits import Wait
from ridgeline.spec.sampling import SamplingParams

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Status(enum.Enum):
    """Where a request stands. PREPARING waits for something outside (pixels, a transfer, its fork's
    parent)."""

    PREPARING = "preparing"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Finish(enum.StrEnum):
    """Why a request ended. STOP: an end id, a stop token or (keep_tokens) a stop string; LENGTH: max_tokens
    or the context border; SHED: sent away before it began, since it would have been late (`overload`)."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    SHED = "shed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """What the loop is given. id is the caller's; n > 1 is asked as one NewRequest and forks inside.

    priority: lower is sooner. cache_salt keeps prefixes of different tenants or adapters apart. adapter: the
    slot of the one that it takes, 0 for the base model. arrived_s: the clock's seconds when the server took
    it; tokenised_s: when its tokens were on their way to the engine (None: at once). imported: tokens from
    the prompt's start whose cache comes with the request, computed elsewhere; below the prompt's length.
    first_token_s: when the prompt's last token, which is the answer's first, came to the client from the
    engine that computed the rest; None: all of the prompt is one. leases: what it computed stays pinned when
    it has ended, until somebody acknowledges that its cache has arrived elsewhere. predicted_output: tokens
    expected of an answer; None: all it may have where nothing else ends it, else as many as its tenant's had.
    """

    id: str
    prompt: NDArray[np.int32]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    adapter: int = 0
    arrived_s: float = 0.0
    tokenised_s: float | None = None
    tenant: str = ""
    imported: int = 0
    first_token_s: float | None = None
    leases: bool = False
    predicted_output: int | None = None


class Output(msgspec.Struct, frozen=True, gc=False):
    """News of one choice, emitted after a commit. A msgspec struct because a step makes one for every row.

    new_tokens: ids in order (the end id included, marked by finish). num_prompt, num_cached, num_output: for
    usage; set always. error: the text for finish ERROR. times_s: {"arrived", "tokenised", "first_scheduled",
    "first_started", "first_token", "finished"} (those that happened), with the first token and at the end.
    account: at the end, numbers that explain the request, by the names of `base.trace.RequestRecord`; those
    of waits_s as "waited_REASON_s". pooled [hidden]: with the token of a request with `pool`.
    """

    id: str
    choice: int
    new_tokens: tuple[int, ...]
    num_output: int = 0
    num_prompt: int = 0
    num_cached: int = 0
    finish: Finish | None = None
    stop_token: int | None = None
    error: str | None = None
    logprobs: tuple[RowLogprobs, ...] = ()
    prompt_logprobs: tuple[tuple[int, RowLogprobs], ...] = ()
    pooled: NDArray[np.float32] | None = None
    times_s: Mapping[str, float] = _NOTHING
    account: Mapping[str, float | int | str] = _NOTHING


@dataclass(slots=True, kw_only=True)
class Request:
    """One choice of a request. Written by the scheduler only.

    tokens [known], of 32 bits: prompt and committed output; while it runs, only its row has the last ones and
    their token_times_s (`Rows.sync`). order: the policy's rank, smaller first, unique. passed: requests that
    started before it while it was the eldest or had no room; aged: often enough to rank first (`admit`).
    end: positions that are ever fed: the last output token is not; asked for no token, it still computes one.
    predicted_output: tokens; what it may have at the most when nothing is known. row: the runner row while
    RUNNING, else -1. last_step: the last step begun that includes it, as of when it left its row. num_cached:
    prompt tokens reused at its first start; reuse_limit: why no more. lost_tokens: tokens computed before the
    last preemption. away: what it computed waits in host memory. wasted_tokens: computed more than once, or
    past the end. prompt_logprobs_from: the first prompt position whose log-probability is still owed
    (num_prompt when none is). imported: tokens whose cache came with it and is not in the arena yet; 0 once
    it has started. leases: see NewRequest. wait, wait_since_s, waits_s, line_s: `waits.Waits` keeps them.
    first_scheduled_s, first_started_s: into a plan, and its start on the device. num_chunks, num_drafts,
    num_accepted, num_forced: see `base.trace.RequestRecord`. void_step: what steps up to it say of it does
    not count, since one of them lacked memory for it. must_tokens, late, retry_after_s: what `overload` knows
    of it.
    """

    number: int
    id: str
    choice: int
    params: SamplingParams
    seed: int
    prompt: NDArray[np.int32]
    tokens: "array[int]"
    stop_token_ids: frozenset[int]
    max_tokens: int
    end: int
    priority: int = 0
    cache_salt: str = ""
    adapter: int = 0
    tenant: str = ""
    arrived_s: float = 0.0
    tokenised_s: float = 0.0
    predicted_output: int = 0
    order: tuple[float, ...] = ()
    passed: int = 0
    aged: bool = False
    status: Status = Status.WAITING
    row: int = -1
    last_step: int = -1
    void_step: int = -1
    num_prompt: int = 0
    num_cached: int = 0
    reuse_limit: str = ""
    prompt_logprobs_from: int = 1
    imported: int = 0
    leases: bool = False
    lost_tokens: int = 0
    away: bool = False
    wasted_tokens: int = 0
    num_preemptions: int = 0
    finish: Finish | None = None
    num_chunks: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_forced: int = 0
    must_tokens: int = 0
    late: bool = False
    retry_after_s: float | None = None
    wait: Wait | None = None
    wait_since_s: float = 0.0
    waits_s: dict[str, float] = field(default_factory=dict)
    line_s: dict[Wait, float] = field(default_factory=dict)
    first_scheduled_s: float | None = None
    first_started_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    token_times_s: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def known(self) -> "array[int] | NDArray[np.int32]":
        """`tokens`, as an array while they are the prompt's."""
        return self.prompt if len(self.tokens) == self.num_prompt else self.tokens

    @property
    def num_shared(self) -> int:
        """Prompt tokens that its siblings need not compute: all but the one whose logits they sample from."""
        return min(self.num_prompt, self.end) - 1

    @property
    def owes_prompt_logprobs(self) -> bool:
        return self.prompt_logprobs_from < self.num_prompt

    def news(self, new_tokens: tuple[int, ...] = (), *, stop_token: int | None = None,
             error: str | None = None, logprobs: tuple[RowLogprobs, ...] = (),
             prompt_logprobs: tuple[tuple[int, RowLogprobs], ...] = (),
             pooled: NDArray[np.float32] | None = None) -> Output:
        """What the caller hears now; the last news (finish is set) carries the times and the account."""
        num_output, finish = self.num_output, self.finish
        first = bool(new_tokens) and num_output <= len(new_tokens)
        return Output(
            id=self.id, choice=self.choice, new_tokens=new_tokens, finish=finish, stop_token=stop_token,
            error=error, logprobs=logprobs, prompt_logprobs=prompt_logprobs, pooled=pooled,
            num_prompt=self.num_prompt, num_cached=self.num_cached, num_output=num_output,
            times_s=self._times_s() if first or finish is not None else _NOTHING,
            account=_NOTHING if finish is None else self._account())

    def _times_s(self) -> dict[str, float]:
        times = {"arrived": self.arrived_s, "tokenised": self.tokenised_s,
                 "first_scheduled": self.first_scheduled_s, "first_started": self.first_started_s,
                 "first_token": self.first_token_s, "finished": self.finished_s}
        return {name: at for name, at in times.items() if at is not None}

    def _account(self) -> dict[str, float | int | str]:
        late = {"late": 1} if self.late else {}
        retry = {} if self.retry_after_s is None else {"retry_after_s": self.retry_after_s}
        return {**late, **retry, "num_preemptions": self.num_preemptions, "wasted_tokens": self.wasted_tokens,
                "num_reused_tokens": self.num_cached, "reuse_limit": self.reuse_limit,
                "num_chunks": self.num_chunks, "num_drafts": self.num_drafts,
                "num_accepted": self.num_accepted, "num_forced": self.num_forced,
                **{f"waited_{reason}_s": spent_s for reason, spent_s in self.waits_s.items()}}
