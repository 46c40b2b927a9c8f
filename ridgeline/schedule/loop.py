"""The loop: plan -> begin -> finish -> commit -> news, against whatever executor. Live serving and simulation
run it.

It keeps up to the executor's max_in_flight steps begun, so that step n + 1 is planned while n runs. It knows
no model, no socket and no request's text.
"""

from collections import deque
from collections.abc import Mapping

import msgspec
import numpy as np

from ridgeline.base.clock import Clock
from ridgeline.base.errors import EngineDeadError
from ridgeline.base.stats import LittleLaw
from ridgeline.base.trace import Trace
from ridgeline.schedule.course import Leap
from ridgeline.schedule.executor import Executor, Oracle
from ridgeline.schedule.plan import FAILED, UNDONE, StepPlan, StepResult
from ridgeline.schedule.records import (
    Came,
    Flight,
    ForReplay,
    Prices,
    prefill_share,
    request_record,
    step_record,
)
from ridgeline.schedule.request import NewRequest, Output
from ridgeline.schedule.scheduler import Scheduler


class Loop:
    """Drives one scheduler and one executor; single-threaded, never sleeps, waits only in the executor's
    finish().

    trace: takes a record of each step and each ended choice. prices: what they should have taken, for the
    records. for_replay: records say what a replay needs. EngineDeadError from the executor passes through;
    a MemoryError leaves the step undone; any other error fails the requests of that step and no other.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Clock, trace: Trace | None = None,
                 prices: Prices | None = None, for_replay: ForReplay | None = None) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._trace = trace
        self._prices = prices
        self._depth = min(executor.max_in_flight, scheduler.max_in_flight or executor.max_in_flight)
        self._flights: deque[Flight] = deque()
        self._news: list[Output] = []
        self._num_finished = 0
        self._num_preemptions = 0
        self._measured_s = self._floor_s = self._prefill_s = 0.0
        self._law = LittleLaw(clock.now())
        self._for_replay = for_replay
        self._came: dict[str, int] = {}  # steps finished when a request came, for its record

    # ---- requests

    def add(self, new: NewRequest, came_s: float | None = None) -> None:
        """RequestError when the request can never run or is badly formed. came_s: when, where a leap has gone
        on to the end of the step that ran then; None: now."""
        self._scheduler.add(new)
        now = self._clock.now() if came_s is None else came_s
        if self._for_replay is not None:
            self._came[new.id] = self._num_finished
        for choice in range(new.params.n):
            self._law.arrive((new.id, choice), now)
        self._law.number(self._scheduler.num_requests, now)

    def abort(self, request_id: str, choice: int | None = None, keep_tokens: int | None = None) -> None:
        """End a request, or one of its choices, now; its last news comes with the next step(). Unknown ids
        pass.

        keep_tokens: the output tokens that count (a stop string was hit there).
        """
        now = self._clock.now()
        self._tell(self._scheduler.abort(request_id, choice, keep_tokens, now=now), aborted=True)

    def acknowledge(self, request_id: str) -> None:
        """See `Scheduler.acknowledge`."""
        self._scheduler.acknowledge(request_id)

    # ---- steps

    def has_work(self) -> bool:
        """True while step() has something to do: a living request, a step in flight, or news to give."""
        return bool(self._news or self._flights) or self._scheduler.has_requests

    def idle(self) -> bool:
        return not self.has_work()

    def progress(self) -> int:
        """Steps finished since the start: liveness is this number growing while has_work()."""
        return self._num_finished

    def next_ready_at(self) -> float | None:
        """When the oldest step in flight ends, if there is one and the executor can tell."""
        if not self._flights or self._flights[0].ticket is None:
            return None
        return self._executor.ready_at(self._flights[0].ticket)

    def step(self) -> list[Output]:
        """Fill the pipeline, then wait for its oldest step; the news of what ended or advanced."""
        self.launch()
        return self.collect()

    def launch(self) -> None:
        """Plan and begin steps until the pipeline is full or nothing more can be planned."""
        while len(self._flights) < self._depth:
            before_s = self._clock.now()
            plan = self._scheduler.plan(before_s)
            if news := self._scheduler.take_news():
                self._tell(news)
            if plan is None:
                return
            self._flights.append(self._begin(plan, before_s))

    def collect(self) -> list[Output]:
        """Wait for the oldest step in flight, if any, and commit it; the news since the last call."""
        if self._flights:
            flight = self._flights.popleft()
            result = self._finish(flight)
            now = self._clock.now()
            news = self._scheduler.commit(flight.plan, result, now)
            self._num_finished += 1
            record = step_record(flight, result, self._clock.now() - now, self._prices,
                                 digest=self._for_replay is not None)
            self._measured_s += record.measured_s
            self._floor_s += record.floor_s or 0.0
            self._prefill_s += record.prefill_share * record.measured_s
            if self._trace is not None:
                self._trace.add(record)
            self._tell(news)
        return self._take_news()

    def leap(self, oracle: Oracle, until_s: float, quiet_s: float = 0.0) -> Leap | None:
        """Finish all steps up to until_s of which all is known before, at once, and begin as many; None where
        step() must. oracle: the executor. No record of a step comes of it. quiet_s: where this is later, all
        that happens before it is that requests come at until_s, and the step that runs then may be finished
        too; then the next is not begun, and they are added with that time."""
        flights = list(self._flights)
        if len(flights) < self._depth or any(f.ticket is None or len(f.plan.copies) for f in flights):
            return None
        course = self._scheduler.course()
        future = None if course is None else oracle.foresee(course, until_s, quiet_s)
        if future is None:
            return None
        assert course is not None
        depth, num_steps = len(flights), len(future.finished_s)
        landed = self._scheduler.leap(course, future, [flight.plan for flight in flights])
        tickets = oracle.leap(num_steps, landed.plans)
        load, running, used = self._scheduler.load(), landed.running, landed.used_pages
        since = num_steps - depth  # of the plans behind, those that are committed too
        begun_s = future.finished_s[since:].tolist()
        self._flights = deque(
            Flight(plan=plan, ticket=ticket, error=None, begun_s=begun_s[i], plan_s=0.0,
                   planned_s=oracle.ready_at(ticket) - begun_s[i], num_preemptions=0,
                   load=msgspec.structs.replace(load, running=int(running[since + i]),
                                                used_pages=int(used[since + i])))
            for i, (plan, ticket) in enumerate(zip(landed.plans, tickets, strict=True)))
        self._num_finished += num_steps
        shares, took_s = np.zeros(num_steps), future.finished_s - future.started_s
        shares[:depth] = [prefill_share(flight.plan, None, None) for flight in flights]
        self._measured_s += float(np.add.reduce(took_s))
        self._prefill_s += float(took_s @ shares)
        self._over(aborted=False)
        return Leap(
            started_s=future.started_s, finished_s=future.finished_s, prefill_share=shares,
            news=[*self._take_news(), *landed.news], num_preemptions=sum(f.num_preemptions for f in flights),
            num_rows=np.concatenate([[flight.plan.num_rows for flight in flights], landed.num_rows[:since]]),
            running=np.concatenate([[flight.load.running for flight in flights], running[:since]]),
            used_pages=np.concatenate([[flight.load.used_pages for flight in flights], used[:since]]))

    def stats(self) -> dict[str, int | float | Mapping[str, float]]:
        """The scheduler's gauges and counters, how deep the pipeline is, Little's law (`base.stats`), and the
        seconds of all finished steps: what they took, that part of it which was prefill, and, with prices,
        their floors."""
        return {**self._scheduler.stats(), "num_in_flight": len(self._flights),
                "step_measured_s": self._measured_s, "step_floor_s": self._floor_s,
                "step_prefill_s": self._prefill_s, "little_law": self.little_law()}

    def little_law(self) -> Mapping[str, float]:
        """`base.stats.LittleLaw` of the choices that were added, by now."""
        return self._law.report(self._clock.now())

    def check(self) -> None:
        """The scheduler's invariants; AssertionError on any difference."""
        self._scheduler.check()

    # ---- inside

    def _begin(self, plan: StepPlan, before_s: float) -> Flight:
        ticket, error, planned_s = None, None, None
        begun_s = self._clock.now()
        try:
            ticket = self._executor.begin(plan, begun_s)
            ready_s = self._executor.ready_at(ticket)
            planned_s = None if ready_s is None else ready_s - begun_s
        except EngineDeadError:
            raise
        except Exception as failure:
            error = failure.with_traceback(None)  # which holds on to the memory of what broke
        load = self._scheduler.load()
        preempted = load.num_preemptions - self._num_preemptions
        self._num_preemptions = load.num_preemptions
        return Flight(plan=plan, ticket=ticket, error=error, begun_s=begun_s, plan_s=begun_s - before_s,
                      planned_s=planned_s, load=load, num_preemptions=preempted)

    def _finish(self, flight: Flight) -> StepResult:
        """The executor's result, or one in which every row failed, or lacked memory."""
        if flight.error is not None:
            return _broken(flight.plan, flight.error, self._clock.now())
        assert flight.ticket is not None
        try:
            return self._executor.finish(flight.ticket, self._clock.now())
        except EngineDeadError:
            raise
        except Exception as failure:
            return _broken(flight.plan, failure, self._clock.now())

    def _tell(self, news: list[Output], *, aborted: bool = False) -> None:
        """Queue news; the last of a choice that ended gets its floor."""
        if floors := self._over(aborted=aborted):
            news = [_with_floor(output, floors) for output in news]
        self._news += news

    def _take_news(self) -> list[Output]:
        news, self._news = self._news, []
        return news

    def _over(self, *, aborted: bool) -> Mapping[tuple[str, int], float | None]:
        """Choices that ended leave a record; their floors."""
        floors: dict[tuple[str, int], float | None] = {}
        ended = self._scheduler.take_ended()
        for left, request in zip(range(len(ended) - 1, -1, -1), ended, strict=True):
            record = request_record(request, self._prices, self._how_it_came(request.id, aborted))
            floors[record.id, record.choice] = record.floor_s
            self._law.leave((record.id, record.choice), record.finished_s)
            self._law.number(self._scheduler.num_requests + left, record.finished_s)
            if self._trace is not None:
                self._trace.add(record)
        for request_id in {name for name, _ in floors if not self._scheduler.knows(name)}:
            self._came.pop(request_id, None)
        return floors

    def _how_it_came(self, request_id: str, aborted: bool) -> Came | None:
        if self._for_replay is None:
            return None
        return Came(came_after=self._came[request_id], left_after=self._num_finished if aborted else None,
                    how=self._for_replay)


def _with_floor(output: Output, floors: Mapping[tuple[str, int], float | None]) -> Output:
    floor_s = floors.get((output.id, output.choice)) if output.finish is not None else None
    if floor_s is None:
        return output
    return msgspec.structs.replace(output, account={**output.account, "floor_s": floor_s})


def _broken(plan: StepPlan, failure: Exception, now: float) -> StepResult:
    """No row came through, and nobody knows what became of the plan's copies."""
    short = isinstance(failure, MemoryError)
    reason = f"the step failed: {type(failure).__name__}: {failure}"
    return StepResult(
        step=plan.step, num_new=np.zeros(plan.num_rows, np.int32), tokens=np.zeros(0, np.int32),
        failed=np.full(plan.num_rows, UNDONE if short else FAILED, np.uint8), short=short,
        errors=dict.fromkeys(range(plan.num_rows), reason), lost_tickets=plan.copies.ticket, started_s=now,
        finished_s=now)
