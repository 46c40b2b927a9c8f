"""A recorded trace of a live engine through the scheduler again: with the step results of the record the
plans must be those of the record, step by step; and what the ledger says of each step is held against what it
took.

Where texts were recorded by blocks alone, tokens are made up anew, equal where the record's blocks are. Not
replayed: drafts, forced tokens, failed rows, prompt log-probabilities (which limit reuse).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ridgeline.base.errors import ConfigError
from ridgeline.base.stats import percentiles
from ridgeline.base.trace import RequestRecord, StepRecord, read_header, read_trace
from ridgeline.ledger.steps import StepSeconds
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.origin import Origin
from ridgeline.schedule.plan import Int, StepPlan, StepResult
from ridgeline.schedule.records import digest_of
from ridgeline.schedule.request import NewRequest
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.spec.sampling import SamplingParams

_MIX, _BITS = 0x9E3779B1, (1 << 60) - 1  # odd: neighbours get distinct token ids
VOCABULARY = 1 << 20  # large, so that no two texts begin alike by chance; its last id ends a text
_END = VOCABULARY - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A trace's steps and choices, in the order they began and came."""

    steps: tuple[StepRecord, ...]
    requests: tuple[RequestRecord, ...]


def read_recorded(path: str | Path) -> Recorded:
    """ConfigError where it cannot be replayed."""
    try:
        records = list(read_trace(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"no trace to replay: {error}") from None
    steps = tuple(one for one in records if isinstance(one, StepRecord))
    requests = sorted((one for one in records if isinstance(one, RequestRecord)), key=lambda one: one.number)
    if not steps or not requests or requests[0].number < 0 or not all(step.digest for step in steps):
        raise ConfigError(f"{path} does not say what a replay needs: record it with --trace-file")
    if [one.number for one in requests] != list(range(len(requests))):
        raise ConfigError(f"{path} was cut off: some requests had not ended")
    if any(step.num_drafts or step.num_forced or step.num_failed for step in steps):
        raise ConfigError(f"{path} has drafts, forced tokens or failed rows, which are not replayed")
    return Recorded(steps=steps, requests=tuple(requests))


def read_origin(path: str | Path) -> Origin:
    """How the engine that recorded a trace was made; ConfigError where that is not said."""
    return Origin.from_json(read_header(path).get("engine", {}))


class Texts:
    """Token ids of each choice: as recorded, else equal wherever the record's blocks are and, where a prefix
    was found in the cache that ended inside a block, equal so far to the last block that was seen there
    (which of several such blocks the engine copied, only the ids tell)."""

    def __init__(self, requests: Sequence[RequestRecord]) -> None:
        self._blocks: dict[int, Int] = {}
        self._behind: dict[int, Int] = {}  # the last block seen behind each prefix
        self.tokens = [self._text(one) for one in requests]

    def _text(self, one: RequestRecord) -> Int:
        size, ids = one.block_tokens, (0, *one.block_ids)
        whole, part = divmod(min(one.num_cached, one.num_prompt), size)
        tokens = self._made(-1 - one.number, 0, one.num_prompt + one.num_output + 1)
        if one.token_ids:
            tokens[:len(one.token_ids)] = one.token_ids
            return tokens
        for place in range(-(-len(tokens) // size)):
            here = tokens[place * size:(place + 1) * size]
            known = self._blocks.get(ids[place + 1]) if place + 1 < len(ids) else None
            if known is not None:
                here[:] = known
            elif place == whole and part and (near := self._behind.get(ids[place])) is not None:
                here[:part] = near[:part]
            if place + 1 < len(ids):
                self._blocks[ids[place + 1]] = self._behind[ids[place]] = here
        return tokens

    def _made(self, source: int, first: int, count: int) -> Int:
        mixed = np.arange(first, first + count, dtype=np.int64) * _MIX + (source * _MIX & _BITS)
        return ((mixed ^ (mixed >> 29)) % _END).astype(np.int32)


@dataclass(slots=True)
class _Player:
    """An executor that gives each step the record's times, and its rows the record's tokens. It is the clock
    too: a plan is made when the record's was begun."""

    recorded: Recorded
    offers: Capacity
    max_in_flight: int
    texts: Texts
    plans: list[StepPlan] = field(default_factory=list)
    _begun: deque[StepPlan] = field(default_factory=deque)

    def now(self) -> float:
        steps = self.recorded.steps
        step = steps[min(len(self.plans), len(steps) - 1)]
        return step.begun_s - step.plan_s

    def capacity(self) -> Capacity:
        return self.offers

    def begin(self, plan: StepPlan, now: float) -> int:
        self._begun.append(plan)
        self.plans.append(plan)
        return plan.step

    def ready_at(self, ticket: int) -> float | None:
        return None

    def finish(self, ticket: int, now: float) -> StepResult:
        plan = self._begun.popleft()
        samples = plan.sample > 0
        ends = (plan.start + plan.count)[samples]
        tokens = [self._token(number, end) for number, end in
                  zip(plan.request[samples].tolist(), ends.tolist(), strict=True)]
        record = self.recorded.steps[min(plan.step, len(self.recorded.steps) - 1)]
        return StepResult(
            step=plan.step, num_new=samples.astype(np.int32), tokens=np.array(tokens, np.int32),
            failed=np.zeros(plan.num_rows, np.uint8), returned_tickets=plan.copies.ticket,
            started_s=record.started_s, finished_s=record.finished_s)

    def _token(self, number: int, position: int) -> int:
        record, text = self.recorded.requests[number], self.texts.tokens[number]
        last = record.num_prompt + record.num_output - 1
        if record.finish == "stop" and record.left_after is None and position == last:
            return _END
        return int(text[min(position, len(text) - 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Steps of one class: how many, the seconds they took and those they are priced at, and percentiles of
    |priced / measured - 1|."""

    num_steps: int
    measured_s: float
    priced_s: float
    error: Mapping[str, float]

    @property
    def total(self) -> float:
        """All seconds together, priced over measured less one."""
        return self.priced_s / self.measured_s - 1 if self.measured_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """num_equal: plans that are the record's, from the first on; difference: what is amiss with the next, ""
    when all are equal. priced: of these steps, all and by class ("decodes", "prompts", "both" in one step);
    empty without prices."""

    num_steps: int
    num_equal: int
    difference: str
    priced: Mapping[str, Priced]


def replay(recorded: Recorded, capacity: Capacity, make_scheduler: Callable[[Capacity], Scheduler], *,
           max_in_flight: int = 2, seconds: StepSeconds | None = None) -> Replayed:
    """Drives a scheduler as the record says the live one was driven.

    make_scheduler: makes it as it was made then, but that texts end at the last id of the vocabulary that it
    is given.
    """
    player = _Player(recorded, replace(capacity, vocab_size=VOCABULARY), max_in_flight,
                     Texts(recorded.requests))
    loop = Loop(make_scheduler(player.capacity()), player, player)
    waiting = deque(one for one in recorded.requests if not one.choice)
    leaving = deque(sorted((one for one in recorded.requests if one.left_after is not None),
                           key=lambda one: (one.left_after or 0, one.finished_s)))
    while waiting or leaving or loop.has_work():
        while waiting and (waiting[0].came_after <= loop.progress() or not loop.has_work()):
            loop.add(request_again(recorded.requests, waiting.popleft(), player.texts))
        while leaving and (leaving[0].left_after or 0) <= loop.progress():
            one = leaving.popleft()
            loop.abort(one.id, one.choice, one.num_output if one.finish == "stop" else None)
        if len(player.plans) > len(recorded.steps):
            break
        loop.step()
    return _compared(recorded, player.plans, seconds)


def request_again(requests: Sequence[RequestRecord], first: RequestRecord, texts: Texts, *,
                  num_output: int | None = None) -> NewRequest:
    """A request as it came, with all its choices. num_output: tokens that it shall have, whatever they
    are."""
    num_choices = 1
    while first.number + num_choices < len(requests) and requests[first.number + num_choices].choice:
        num_choices += 1
    text = texts.tokens[first.number]
    most = first.max_tokens if num_output is None else num_output
    return NewRequest(id=first.id, prompt=text[:first.num_prompt], priority=first.priority,
                      tenant=first.tenant, arrived_s=first.arrived_s, tokenised_s=first.tokenised_s,
                      predicted_output=first.predicted_output,
                      params=SamplingParams(max_tokens=most, n=num_choices, seed=0,
                                            ignore_eos=num_output is not None))


def _compared(recorded: Recorded, plans: Sequence[StepPlan], seconds: StepSeconds | None) -> Replayed:
    num_equal = next((i for i, (plan, step) in enumerate(zip(plans, recorded.steps))
                      if digest_of(plan) != step.digest), min(len(plans), len(recorded.steps)))
    difference = ""
    if num_equal < len(recorded.steps):
        step = recorded.steps[num_equal]
        was = f"{step.num_decodes} decodes and {step.prefill_tokens} prompt tokens"
        now = "nothing" if num_equal >= len(plans) else (
            f"{plans[num_equal].num_decodes} decodes and "
            f"{plans[num_equal].num_tokens - plans[num_equal].num_decodes} prompt tokens")
        difference = f"step {num_equal} had {was}, the replay plans {now}" + (
            ", but other rows or pages" if now == was else "")
    return Replayed(num_steps=len(recorded.steps), num_equal=num_equal, difference=difference,
                    priced={} if seconds is None else _priced(recorded, plans[:num_equal], seconds))


def _priced(recorded: Recorded, plans: Sequence[StepPlan], seconds: StepSeconds) -> dict[str, Priced]:
    pairs: dict[str, list[tuple[float, float]]] = {}
    for plan, step in zip(plans, recorded.steps):
        kind = "prompts" if not plan.num_decodes else "both" if step.num_chunks else "decodes"
        pair = (seconds(plan), step.measured_s)
        for name in ("all", kind):
            pairs.setdefault(name, []).append(pair)
    return {kind: Priced(num_steps=len(of), priced_s=sum(priced for priced, _ in of),
                         measured_s=sum(took for _, took in of),
                         error=percentiles([abs(priced / took - 1) for priced, took in of if took > 0]))
            for kind, of in pairs.items()}
