"""The book of living requests: where each stands, and the moves between waiting, running and finished.

Every move keeps rows, queue, families (the choices of one id) and the KV manager in step. It decides nothing:
the scheduler says who moves.
"""

from dataclasses import dataclass, field
from math import inf

import numpy as np

from ridgeline.base.errors import RequestError
from ridgeline.kv.interface import Manager
from ridgeline.schedule.door import Door, mix_seed
from ridgeline.schedule.forecast import Outputs
from ridgeline.schedule.policies.policy import Policy
from ridgeline.schedule.ranked import Ranked, Waiting
from ridgeline.schedule.request import Finish, NewRequest, Request, Status
from ridgeline.schedule.rows import Rows
from ridgeline.schedule.waits import Wait, Waits


@dataclass(slots=True)
class Counters:
    """Since the start. num_swaps: preemptions to host memory. num_recomputed_tokens: computed again after a
    preemption; num_surplus_tokens: sampled for a choice that had already ended, or beyond its stop; both are
    waste."""

    num_requests: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_surplus_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {str(reason): 0 for reason in Finish})


class Book:
    """Requests by number, families by id, the rows, the queue and the running ones by rank.

    index: False keeps what was computed out of the prefix index (the naive path). ended: choices that ended
    since the last take_ended(). outputs: how long answers became. leases: numbers of ended requests whose
    pages are pinned, by id. elders: sequences that keep the prompt of a choice that has ended for siblings
    which have yet to start, by id, while there is room. stops: [vocab_size] how many living choices end at an
    id.
    """

    def __init__(self, *, rows: Rows, manager: Manager, policy: Policy, door: Door, index: bool,
                 seed: int) -> None:
        self.rows = rows
        self.queue = Waiting()
        self.running = Ranked()
        self.counters = Counters()
        self.waits = Waits()
        self.outputs = Outputs()
        self.requests: dict[int, Request] = {}
        self.stops = np.zeros(door.vocab_size, np.int32)
        self.leases: dict[str, int] = {}
        self.elders: dict[str, int] = {}
        self._families: dict[str, list[Request]] = {}
        self._ended: list[Request] = []
        self._manager = manager
        self._policy = policy
        self._door = door
        self._index = index
        self._seed = seed
        self._next_number = 0

    @property
    def num_waiting(self) -> int:
        return len(self.requests) - self.rows.num_running

    def take_ended(self) -> list[Request]:
        ended, self._ended = self._ended, []
        return ended

    def family(self, request_id: str) -> tuple[Request, ...]:
        """The living choices of an id; () when it is unknown or over."""
        return tuple(self._families.get(request_id, ()))

    def add(self, new: NewRequest) -> None:
        """RequestError when it can never run, or when a request of this id is alive."""
        if new.id in self._families or new.id in self.leases:
            raise RequestError(f"a request with id {new.id!r} is still running: choose another id",
                               param="id", code="duplicate_id")
        self._door.check(new)
        choices = self._door.choices(new, self._next_number, mix_seed(self._seed, self._next_number))
        self._next_number += len(choices)
        self._families[new.id] = choices
        self.counters.num_requests += 1
        for request in choices:
            if new.predicted_output is None:
                request.predicted_output = request.max_tokens if request.params.fixed_length else \
                    self.outputs.usual(request.tenant, request.max_tokens)
            request.order = self._policy.order(request)
            self.requests[request.number] = request
            for token in request.stop_token_ids:
                self.stops[token] += 1
            self.waits.begin(request, Wait.FORK if request.choice else Wait.STEP, request.tokenised_s)
        self.queue.add(choices[0])

    def start(self, request: Request, computed: int, now: float) -> None:
        """From the queue to a row, with `computed` tokens in the cache."""
        self.queue.remove(request)
        self.waits.end(request)
        if request.first_scheduled_s is None:
            request.first_scheduled_s = now
            request.num_cached = min(computed, request.num_prompt)
            self.counters.num_prompt_tokens += request.num_prompt
            self.counters.num_cached_tokens += request.num_cached
        again = max(0, request.lost_tokens - computed)
        request.wasted_tokens += again
        self.counters.num_recomputed_tokens += again
        request.lost_tokens = request.imported = 0
        request.status = Status.RUNNING
        self.running.add(request)
        self.rows.join(request, computed)
        self._settle_elder(request.id)
        self._policy.started(request)

    def age(self, request: Request) -> None:
        """A request that waits ranks before all that have not aged, from now on."""
        self.queue.remove(request)
        request.aged, request.order = True, (-inf, request.number)
        self.queue.add(request)

    def preempt(self, request: Request, *, swap: bool = False) -> None:
        """From its row back to the queue; what it computed may stay cached, or goes to host memory where it
        is to swap and there is room. Tokens in flight still reach it."""
        request.lost_tokens = int(self.rows.scheduled[request.row])
        request.num_preemptions += 1
        self.counters.num_preemptions += 1
        self._leave_row(request, keep=request.lost_tokens if swap else 0)
        self.counters.num_swaps += request.away
        request.status = Status.WAITING
        self.waits.begin(request, Wait.PREEMPTED, self.waits.now)
        self.queue.add(request)

    def undo(self, request: Request) -> None:
        """From its row back to the queue, since a step lacked memory for it: it goes on from what was
        computed before, and what steps in flight say of it does not count."""
        self.preempt(request)
        request.void_step = request.last_step

    def degrade(self, request: Request) -> None:
        """A request that waits ranks behind all others from now on, unless it has aged."""
        if request.aged:
            return
        self.queue.remove(request)
        request.order = (inf, *request.order)
        self.queue.add(request)

    def finish(self, request: Request, reason: Finish, now: float) -> None:
        """End a choice wherever it stands, free what it holds and let a sibling that waited for it go on."""
        good = reason in (Finish.STOP, Finish.LENGTH)
        if request.row >= 0:
            self._leave_row(request, lease=request.leases and good, lend=good)
        else:
            self.waits.end(request)
            if request.status is Status.WAITING:
                self.queue.remove(request)
                self.give_up(request)
        request.status, request.finish, request.finished_s = Status.FINISHED, reason, now
        del self.requests[request.number]
        for token in request.stop_token_ids:
            self.stops[token] -= 1
        family = self._families[request.id]
        family.remove(request)
        if not family:
            del self._families[request.id]
        elif all(sibling.status is Status.PREPARING for sibling in family):
            self._wake(family[0])
        self._settle_elder(request.id)
        self.counters.finished[reason] += 1
        if good:
            self.outputs.observe(request.tenant, request.num_output)
        self._ended.append(request)

    def acknowledge(self, request_id: str) -> None:
        """Its cache is where it was sent: nothing is held for it any more."""
        self._manager.release(self.leases.pop(request_id))

    def give_up(self, request: Request) -> None:
        """What a waiting request has in host memory is needed no more."""
        if request.away:
            self._manager.release(request.number)
            request.away = False

    def drop_elders(self) -> bool:
        """Others need the pages: siblings find what the prefix index has. False when there were none."""
        for number in self.elders.values():
            self._manager.release(number)
        had = bool(self.elders)
        self.elders.clear()
        return had

    def prompt_computed(self, request: Request) -> None:
        """The siblings of `request` may start: they fork from it or find its blocks in the cache."""
        for sibling in self._families[request.id]:
            if sibling.status is Status.PREPARING:
                self._wake(sibling)

    def surplus(self, request: Request | None, num_tokens: int) -> None:
        """Tokens that were sampled and do not count."""
        self.counters.num_surplus_tokens += num_tokens
        if request is not None:
            request.wasted_tokens += num_tokens

    def check(self) -> None:
        """Every living request stands in exactly one place, and its family knows it."""
        self.rows.check()
        queued, running = list(self.queue), list(self.running)
        for ranked in (queued, running):
            assert [r.order for r in ranked] == sorted({r.order for r in ranked})
        assert all(r.status is Status.WAITING and r.row < 0 for r in queued)
        assert all(r.status is Status.RUNNING for r in running)
        assert {r.number for r in running} == set(self.rows.row_of)
        preparing = [r for r in self.requests.values() if r.status is Status.PREPARING]
        assert {r.number for r in queued + running + preparing} == set(self.requests)
        families = list(self._families.values())
        assert len(queued) + len(running) + len(preparing) == len(self.requests) == sum(map(len, families))
        assert all(any(s.status is not Status.PREPARING for s in family) for family in families)
        stops = np.zeros_like(self.stops)
        for request in self.requests.values():
            stops[list(request.stop_token_ids)] += 1
        assert np.array_equal(stops, self.stops)
        assert self._manager.num_seqs == \
            len(running) + len(self.leases) + len(self.elders) + sum(r.away for r in queued)
        assert all(self._have_yet_to_start(one) for one in self.elders)
        assert not any(r.away for r in running + preparing)
        assert all((request.wait is None) == (request.row >= 0) for request in self.requests.values())
        assert sum(self.waits.counts.values()) == self.num_waiting

    def _wake(self, request: Request) -> None:
        request.status = Status.WAITING
        self.waits.end(request)
        self.waits.begin(request, Wait.STEP, self.waits.now)
        self.queue.add(request)

    def _have_yet_to_start(self, request_id: str) -> bool:
        """Whether a choice of this id may still fork from a sibling."""
        return any(one.row < 0 and not one.num_output for one in self._families.get(request_id, ()))

    def _settle_elder(self, request_id: str) -> None:
        if request_id in self.elders and not self._have_yet_to_start(request_id):
            self._manager.release(self.elders.pop(request_id))

    def _lend(self, request: Request, computed: int) -> None:
        """Keep its prompt, down to a part of a block, for the siblings that would fork from it."""
        shared, elder = request.num_shared, ~request.number
        if request.id in self.elders or not 0 < shared < computed:
            return
        if self._manager.fork(request.number, elder, shared) == shared:
            self.elders[request.id] = elder
        else:
            self._manager.release(elder)

    def _leave_row(self, request: Request, keep: int = 0, *, lease: bool = False, lend: bool = False) -> None:
        """Free row and pages; what it computed of its text may stay cached (a failed step's tokens never
        count as computed; drafts behind the text's end were, and are not of it). keep: positions that are to
        wait in host memory. lease: all pages stay pinned. lend: siblings that have yet to start share its
        prompt."""
        computed = int(self.rows.computed[request.row])
        self.rows.leave(request)
        self._policy.leaves(request)
        if self._index:
            self._manager.commit(request.number, min(computed, len(request.tokens)), request.tokens)
            if lend and len(self._families[request.id]) > 1 and self._have_yet_to_start(request.id):
                self._lend(request, computed)
        request.away = keep > 0 and self._manager.put_away(request.number, keep)
        if lease:
            self.leases[request.id] = request.number
        elif not request.away:
            self._manager.release(request.number)
        self.running.remove(request)
