"""Latency targets: each step is sized by its price, and who starts is chosen so that most meet their
deadlines.

Size. Up to some number of prompt tokens a step costs what its decodes cost alone, since reading the weights
takes longer than multiplying by them: so many every step takes. More it takes only as prompts need them to
meet their deadlines, at an even pace, so that all steps are about as short; never so many that it would last
longer than TPOT, but for LEAST, so that prompts go on whatever the decodes take.

Order. By priority class, the sooner first, and a class may take the place of a strictly later one. Within a
class earliest deadline first among those that can meet it (`on_time`) behind all that the sooner classes have
to compute. Those put off, and those that are late, start after all others of their class, and while others
of it or of a sooner one need tokens their prompts are held, for HELD steps in a row at the most. So under
overload the later classes are late, degraded or shed first. Ageing (`admit`) sees to it that all start.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ridgeline.base.errors import ConfigError
from ridgeline.schedule.plan import StepPlan
from ridgeline.schedule.policies.policy import LOOK, Limits, Needs, Policy, View
from ridgeline.schedule.request import Request
from ridgeline.schedule.rows import Bool
from ridgeline.schedule.speculate import Shape

HELD = 8  # steps in a row that late prompts are left out of
LIVE = 128  # waiting requests whose deadlines are looked at
LEAST = 16  # prompt tokens of a step, whatever it costs
PROBE = 512  # prompt tokens of the steps that tell what a token costs: so many and twice as many
READY = 0.5  # of the time to a deadline, what prompts are spread over: who comes meanwhile needs the rest
KEPT = 0.95  # of TPOT, what a step may last
SMOOTH = 0.1  # a new measurement's weight
NEVER = float("inf")  # the deadline of those that are late
Long = NDArray[np.int64]
Work = tuple[float, float, int]  # class, deadline, prompt tokens


class Slo(Policy):
    """Needs both targets and a price. Where steps take longer than their price, by a factor that is measured
    in steps with prompts, the price is scaled by it: so what rows' adapters add, which the price leaves out,
    is in it, as measured."""

    patience = 64
    passes = None
    lines_up = False

    def __init__(self, needs: Needs) -> None:
        ttft_s, tpot_s = needs.targets.ttft_s, needs.targets.tpot_s
        if needs.price is None or ttft_s is None or tpot_s is None:
            raise ConfigError("the policy 'slo' schedules to targets: give both --ttft and --tpot")
        floor_s = needs.price(Shape(start=np.zeros(1, np.int64), count=np.ones(1, np.int64), num_sampled=1))
        for flag, target_s in (("--ttft", ttft_s), ("--tpot", tpot_s)):
            if target_s < floor_s:
                raise ConfigError(f"{flag} {target_s * 1e3:g}ms is below the floor: a step of one token "
                                  f"takes {floor_s * 1e3:.3g} ms here")
        self._price, self._ttft_s, self._tpot_s = needs.price, ttft_s, tpot_s
        self._factor = 1.0
        self._step_s = 0.0  # that the last step with prompts is expected to take
        self._tokens: dict[int, int] = {}  # to compute of those that wait, as of when they were first seen
        self._line: list[Request] = []

    def order(self, request: Request) -> tuple[float, ...]:
        return (request.priority, request.arrived_s, request.number)

    def outranks(self, waiting: Request, running: Request) -> bool:
        return waiting.priority < running.priority

    def limits(self, view: View, now: float) -> Limits:
        rows, self._line = view.rows, []
        prompting = rows.prompting()
        if not prompting.any() and not (view.queue and rows.num_free):
            return Limits(tokens=view.most_tokens)
        start_s = now + (self._step_s if view.in_flight else 0.0)
        decoding = rows.scheduled[(rows.pending() > 0) & ~prompting]
        cost = Cost(self._seconds, decoding)
        most = max(cost.within(KEPT * self._tpot_s), LEAST)
        late, work = self._running(view, prompting, start_s)
        self._choose(view, start_s, work, most / cost.of(most))
        need = rate_of(work, start_s)
        tokens = int(min(max(cost.free, cost.at_rate(need), LEAST), most))
        self._step_s = cost.of(tokens)
        held = self._held(view, late, work)
        return Limits(tokens=min(tokens + len(decoding), view.most_tokens),
                      rows=None if held is None else ~held)

    def line(self, view: View, now: float) -> Iterable[Request]:
        return [*self._line, *view.queue.head(view.rows.num_free + LOOK)]

    def started(self, request: Request) -> None:
        self._tokens.pop(request.number, None)

    def observe(self, plan: StepPlan, took_s: float) -> None:
        if plan.num_rows > plan.num_decodes:
            shape = Shape(start=plan.start.astype(np.int64), count=plan.count.astype(np.int64),
                          num_sampled=plan.num_sampled)
            self._factor += SMOOTH * (took_s / self._price(shape) - self._factor)

    def _seconds(self, step: Shape) -> float:
        return self._factor * self._price(step)

    def _due(self, request: Request, start_s: float) -> float:
        """When its next token is due; at once when it has begun its answer and was preempted."""
        return start_s if request.num_output else request.arrived_s + self._ttft_s

    def _running(self, view: View, prompting: Bool, start_s: float) -> tuple[Bool, list[Work]]:
        """(rows that are late, remaining work of all prompts that run)."""
        rows, late, work = view.rows, np.zeros(view.rows.size, np.bool_), []
        for row in prompting.nonzero()[0].tolist():
            request = rows.request[row]
            assert request is not None
            due_s = self._due(request, start_s)
            late[row] = due_s < start_s and not request.aged
            work.append((request.order[0], NEVER if late[row] else due_s,
                         int(rows.num_prompt[row] - rows.scheduled[row])))
        return late, work

    def _held(self, view: View, late: Bool, work: Sequence[Work]) -> Bool | None:
        """Rows that this step leaves out, if any: late ones, where others of their class or of a sooner one
        need tokens."""
        soonest = min((rank for rank, due_s, _ in work if due_s < NEVER), default=None)
        if soonest is None or view.held == HELD:
            return None
        at = late.nonzero()[0]
        held = np.zeros_like(late)
        held[at] = [request.order[0] >= soonest for request in view.rows.requests(at)]
        return held if held.any() else None

    def _choose(self, view: View, start_s: float, work: list[Work], rate: float) -> None:
        """Put those that wait in line, class by class while the sooner ones leave room, and what they need
        beside the work that runs. rate: tokens a second."""
        queue, room = view.queue, view.rows.num_free + LOOK
        if len(self._tokens) > 2 * len(queue) + LIVE:
            self._tokens.clear()  # of requests that have gone
        for rank, first, end in queue.classes():
            if len(self._line) >= room or rank == np.inf:  # degraded: they come last, as they rank
                return
            since = queue.since(start_s - self._ttft_s, first, end)
            head, live = queue.head(min(room, end - first), first), queue.head(min(LIVE, end - since), since)
            busy = sum(tokens for other, due_s, tokens in work
                       if other < rank or (other == rank and due_s < NEVER))
            tokens = [self._left(view, request) for request in live]
            due_s = [request.arrived_s + self._ttft_s for request in live]
            kept = on_time([(due, left / rate) for due, left in zip(due_s, tokens)], start_s + busy / rate)
            work += [(rank, due_s[place], tokens[place]) for place in kept]
            chosen = {live[place].number for place in kept}
            others = {request.number: request for request in (*live, *head) if request.number not in chosen}
            resumed = [request for request in head[:LOOK] if request.num_output]
            self._line += [*resumed, *(live[place] for place in kept), *others.values()]
            if end < len(queue):  # later classes come behind these
                work += [(rank, NEVER, self._left(view, request)) for request in others.values()]

    def _left(self, view: View, request: Request) -> int:
        """Prompt tokens that a waiting request must compute, as of when it was first seen."""
        if request.number not in self._tokens:
            self._tokens[request.number] = len(request.tokens) - view.cached(request)
        return self._tokens[request.number]


def on_time(work: Sequence[tuple[float, float]], start_s: float) -> list[int]:
    """Which of (deadline, seconds), in order of their deadlines, to do one after another so that most are
    on time: when one would be late, the one among those up to it that takes longest is put off (Moore 1968,
    "An n job, one machine sequencing algorithm for minimizing the number of late jobs", with Hodgson)."""
    kept: set[int] = set()
    longest: list[tuple[float, int]] = []
    for place, (due_s, seconds) in enumerate(work):
        kept.add(place)
        heappush(longest, (-seconds, place))
        start_s += seconds
        if start_s > due_s:
            less, gone = heappop(longest)
            kept.remove(gone)
            start_s += less
    return sorted(kept)


def rate_of(work: Iterable[Work], start_s: float) -> float:
    """Tokens a second that meet all deadlines, class by class and earliest first, in READY of the time there
    is."""
    rate, total = 0.0, 0
    for _, due_s, tokens in sorted(work):
        total += tokens
        rate = max(rate, total / max(READY * (due_s - start_s), 1e-6))
    return rate


class Cost:
    """Seconds of a step by its prompt tokens, beside decodes behind `starts` tokens each: what the decodes
    take, and from `free` tokens on a line through two steps that are priced."""

    def __init__(self, price: Callable[[Shape], float], starts: Long) -> None:
        num = len(starts)
        start, count = np.append(starts, 0), np.ones(num + 1, np.int64)

        def of(tokens: int) -> float:
            count[num] = tokens
            return price(Shape(start=start, count=count, num_sampled=num + 1))

        low_s, high_s = of(PROBE), of(2 * PROBE)
        self._slope_s = max(high_s - low_s, 1e-12) / PROBE
        self._zero_s = low_s - PROBE * self._slope_s
        self._base_s = price(Shape(start=starts, count=count[:num], num_sampled=num)) if num else of(1)
        self.free = max(self.within(self._base_s), 0.0)

    def of(self, tokens: float) -> float:
        """Seconds."""
        return max(self._base_s, self._zero_s + tokens * self._slope_s)

    def within(self, seconds: float) -> float:
        """Most tokens in so long; negative when there is no time for any."""
        return (seconds - self._zero_s) / self._slope_s

    def at_rate(self, rate: float) -> float:
        """Tokens of each step with which so many are computed in a second; inf when no step does."""
        if rate * self._base_s <= self.free:
            return rate * self._base_s
        left = 1 - rate * self._slope_s
        return rate * self._zero_s / left if left > 0 else np.inf
