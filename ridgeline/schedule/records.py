"""What the loop writes down of a step and of an ended request: measured beside planned and floor.

Fills in `base.trace` records. It knows of prices only that they take a plan, or a request's sizes, and give
seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from ridgeline.base.trace import RequestRecord, StepRecord
from ridgeline.kv.prefix import HashChain
from ridgeline.schedule.plan import FAILED, StepPlan, StepResult
from ridgeline.schedule.request import Request
from ridgeline.schedule.scheduler import Load
from ridgeline.schedule.speculate import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What things should take, in seconds.

    step: the floor of a plan, or of a part of one. request: the floor of (prompt tokens, those of them that
    were cached, output tokens) alone on the machine. experts: distinct experts, over all layers, that so many
    tokens are expected to read. planned: what a step is expected to take, None where nobody can tell.
    adapter: what the adapter of a slot adds to each step that any of its rows is in.
    """

    step: Callable[[StepPlan | Shape], float]
    request: Callable[[int, int, int], float]
    experts: Callable[[int], float] = lambda num_tokens: 0.0
    planned: Callable[[StepPlan], float] | None = None
    adapter: Callable[[int], float] = lambda slot: 0.0

    def adapters(self, plan: StepPlan) -> float:
        """Seconds that the adapters of a step's rows add to it."""
        return sum(map(self.adapter, plan.adapters))


class Flight(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step begun: its ticket, or why it could not begin, and what its record says of the time before.

    load: after the plan. num_preemptions: made by the plan. planned_s: the executor's own word.
    """

    plan: StepPlan
    ticket: int | None
    error: Exception | None
    begun_s: float
    plan_s: float
    planned_s: float | None
    load: Load
    num_preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForReplay:
    """Records say what a replay needs: texts by blocks of so many tokens and, with texts, their token ids."""

    block_tokens: int
    texts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """For a replay: steps that had finished when a request came, and when somebody ended it (None: it ended
    by itself)."""

    came_after: int
    left_after: int | None
    how: ForReplay


def digest_of(plan: StepPlan) -> int:
    """Names what a plan computes: which tokens of which request, in which row, and what is sampled."""
    rows = (plan.request, plan.row, plan.start, plan.count, plan.sample)
    return crc32(b"".join(values.tobytes() for values in rows))


def step_record(flight: Flight, result: StepResult, commit_s: float, prices: Prices | None,
                *, digest: bool = False) -> StepRecord:
    """The record of a finished step; the executor's own plan goes before the estimate. digest: names the
    plan too."""
    plan, load, planned_s, num_drafts = flight.plan, flight.load, flight.planned_s, flight.plan.num_drafts
    floor_s = None
    if prices is not None:
        floor_s = prices.step(_spared(plan, result) if result.shared else plan) + prices.adapters(plan)
    if planned_s is None and prices is not None and prices.planned is not None:
        planned_s = prices.planned(plan) + prices.adapters(plan)
    return StepRecord(
        step=plan.step, num_decodes=plan.num_decodes, num_chunks=plan.num_rows - plan.num_decodes,
        prefill_tokens=plan.num_tokens - plan.num_decodes - num_drafts,
        num_sampled=int(np.count_nonzero(plan.sample)) + num_drafts,
        num_drafts=num_drafts, num_new=len(result.tokens),
        num_forced=sum(map(len, result.forced.values())),
        context_tokens=int(np.add.reduce(plan.start)) + plan.num_tokens,
        running=load.running, waiting=load.waiting, used_pages=load.used_pages, free_pages=load.free_pages,
        num_copies=len(plan.copies),
        num_preemptions=flight.num_preemptions, num_failed=int(np.count_nonzero(result.failed == FAILED)),
        begun_s=flight.begun_s, started_s=result.started_s, finished_s=result.finished_s,
        plan_s=flight.plan_s, commit_s=commit_s, planned_s=planned_s,
        measured_s=result.finished_s - result.started_s, floor_s=floor_s, experts_read=result.experts_read,
        shared_tokens=sum((len(rows) - 1) * tokens for rows, tokens in result.shared),
        experts_expected=0.0 if prices is None else prices.experts(plan.num_tokens),
        prefill_share=prefill_share(plan, floor_s, prices), digest=digest_of(plan) if digest else 0)


def _spared(plan: StepPlan, result: StepResult) -> Shape:
    """As if keys that rows read together were one row's alone."""
    start = plan.start.astype(np.int64)
    for rows, tokens in result.shared:
        start[list(rows[1:])] -= tokens
    return Shape(start=start, count=plan.count.astype(np.int64), num_sampled=plan.num_sampled)


def prefill_share(plan: StepPlan, floor_s: float | None, prices: Prices | None) -> float:
    """What the chunks of a step add to its decodes, as a share of its floor; by tokens without prices."""
    decodes = plan.num_decodes
    if decodes in (0, plan.num_rows):
        return float(not decodes)
    if prices is None or not floor_s:
        return 1 - (decodes + plan.num_drafts) / plan.num_tokens
    start, count = (part[:decodes].astype(np.int64) for part in (plan.start, plan.count))
    alone = Shape(start=start, count=count, num_sampled=decodes)
    return 1 - (prices.step(alone) + prices.adapters(plan)) / floor_s


def request_record(request: Request, prices: Prices | None, came: Came | None = None) -> RequestRecord:
    """The record of a choice that has ended; with what a replay needs where it is known how it came."""
    assert request.finish is not None and request.finished_s is not None
    floor_s = None
    if prices is not None:
        floor_s = prices.request(request.num_prompt, request.num_cached, request.num_output)
        floor_s += request.num_output * prices.adapter(request.adapter)
    return RequestRecord(
        id=request.id, choice=request.choice, priority=request.priority, tenant=request.tenant,
        num_prompt=request.num_prompt, num_cached=request.num_cached, num_output=request.num_output,
        finish=str(request.finish), num_preemptions=request.num_preemptions,
        wasted_tokens=request.wasted_tokens, arrived_s=request.arrived_s,
        tokenised_s=request.tokenised_s, first_scheduled_s=request.first_scheduled_s,
        first_started_s=request.first_started_s, waits_s=request.waits_s, num_chunks=request.num_chunks,
        num_drafts=request.num_drafts, num_accepted=request.num_accepted, num_forced=request.num_forced,
        first_token_s=request.first_token_s, finished_s=request.finished_s, floor_s=floor_s,
        token_times_s=request.token_times_s[:request.num_output],
        **({} if came is None else _replayable(request, came)))


def _replayable(request: Request, came: Came) -> dict[str, Any]:
    size = came.how.block_tokens
    chain = HashChain(request.cache_salt, size)
    chain.extend(request.tokens, len(request.tokens) // size)
    ids = tuple(int.from_bytes(digest[:6], "big") for digest in chain.digests[1:])
    return {"number": request.number, "came_after": came.came_after, "left_after": came.left_after,
            "max_tokens": request.max_tokens, "predicted_output": request.predicted_output,
            "block_tokens": size, "block_ids": ids,
            "token_ids": tuple(request.tokens) if came.how.texts else ()}
