"""Each policy against a twin in plain Python that decides who gets what by the policy's written rule."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.base.errors import ConfigError
from ridgeline.kv.manager import KVManager
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.plan import StepPlan, StepResult
from ridgeline.schedule.policies.policy import LOOK, Needs, Policy
from ridgeline.schedule.policies.prefill import STALL
from ridgeline.schedule.policies.slo import HELD, KEPT, LEAST
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.policies.throughput import STALL as FILL
from ridgeline.schedule.policies.throughput import Throughput
from ridgeline.schedule.request import NewRequest
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.schedule.speculate import Shape
from ridgeline.schedule.targets import Targets
from ridgeline.spec.cache import Paged, plan_layout
from ridgeline.spec.sampling import SamplingParams

LAYOUT = plan_layout([(Paged(bytes_per_entry=64),)], block_tokens=4)
STEP = 24  # most tokens of a step
NEEDS = Needs(targets=Targets(ttft_s=20.0, tpot_s=2.0),
              price=lambda step: max(1.0, int(step.count.sum()) / 12))


@dataclass
class Job:
    """A request of the twin: computed tokens, outputs made, and how often it was passed."""

    number: int
    at: int
    prompt: int
    output: int
    priority: int = 0
    tenant: str = ""
    done: int = 0
    made: int = 0
    passed: int = 0
    aged: bool = False

    @property
    def wants(self) -> int:
        return self.prompt + self.made - self.done

    @property
    def decodes(self) -> bool:
        return self.done >= self.prompt


class Engine:
    """A real scheduler, one step at a time, with as many pages as it may want unless told otherwise."""

    def __init__(self, policy: Policy, rows: int, num_pages: int = 2000, step_tokens: int = STEP) -> None:
        capacity = Capacity(layout=LAYOUT, num_pages=num_pages, num_rows=rows, max_step_tokens=step_tokens,
                            max_model_len=400, vocab_size=50)
        self.policy = policy
        self.scheduler = Scheduler(capacity, KVManager(LAYOUT, num_pages, prefix_caching=False), policy,
                                   max_num_batched_tokens=step_tokens, max_num_seqs=rows)
        self.ended: list[int] = []
        self.seconds: Callable[[StepPlan], float] = lambda plan: 0.0

    def add(self, job: Job) -> None:
        self.scheduler.add(NewRequest(
            id=str(job.number), prompt=np.full(job.prompt, 1 + job.number % 40, np.int32),
            params=SamplingParams(seed=1, max_tokens=job.output, ignore_eos=True), priority=job.priority,
            tenant=job.tenant, arrived_s=float(job.at), predicted_output=job.output))

    def step(self, now: float) -> dict[int, int]:
        """Tokens by request of the next step; {} when there was none."""
        plan = self.scheduler.plan(now)
        if plan is None:
            return {}
        result = result_of(plan, float(now), now + self.seconds(plan))
        for output in self.scheduler.commit(plan, result, now + 1):
            if output.finish is not None:
                self.ended.append(int(output.id))
        return dict(zip(plan.request.tolist(), plan.count.tolist()))


def result_of(plan: StepPlan, started_s: float, finished_s: float) -> StepResult:
    num_new = (plan.sample == 1).astype(np.int32)
    return StepResult(step=plan.step, num_new=num_new, failed=np.zeros(plan.num_rows, np.uint8),
                      tokens=np.full(int(num_new.sum()), 3, np.int32), started_s=started_s,
                      finished_s=finished_s)


@dataclass
class Twin:
    """What every policy's written rule shares: decodes first, then prompts that run, then starts."""

    rows: int
    rule: str
    patience: int = Policy.patience
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    held: int = 0
    batch: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    lanes: set[str] = field(default_factory=set)
    level: int = 0

    def rank(self, job: Job) -> tuple[int, ...]:
        key = {"priority": job.priority, "slo": job.priority, "shortest": job.output,
               "throughput": -job.output}.get(self.rule, 0)
        return (0, 0, job.number) if job.aged else (1, key, job.number)

    def step(self) -> dict[int, int]:
        if not self.waiting and not self.running:
            return {}
        limit, most, whole = STEP, self.rows, self.rule in (
            "static", "fcfs", "prefill", "throughput")
        decodes = True
        if self.rule == "chunked:7":
            limit = max(7, len(self.running) + 1)
        if self.rule == "static":
            if not self.running:
                self.batch = min(len(self.waiting), self.rows)
            elif not self.held:
                self.batch = 0
            most, decodes = self.batch, not (self.batch or self.held)
        if self.rule == "prefill":
            prompts = (self.waiting and len(self.running) < self.rows) or \
                any(not job.decodes for job in self.running)
            decodes = not prompts or self.held >= STALL
        if self.rule == "throughput":
            most, whole = self.rows if self.enough() else 0, not self.fills()
            decodes = whole
        taken = self.serve(limit, decodes)
        self.start(taken, limit, most, whole)
        self.held = 0 if decodes else self.held + 1
        if not taken:
            self.held, taken = 0, self.serve(limit, True)
        self.advance(taken)
        return taken

    def enough(self) -> bool:
        """Few decode, a prompt runs, or those who may start are all that wait or make half a step."""
        line = sorted(self.waiting, key=self.rank)[:self.rows - len(self.running)]
        return len(self.running) < MANY or len(line) == len(self.waiting) or \
            not all(job.decodes for job in self.running) or 2 * sum(job.prompt for job in line) >= STEP

    def fills(self) -> bool:
        """All that wait have rows, none of those that run has a longer answer, and prompts alone have been
        computed since the first began."""
        if not self.waiting or len(self.waiting) + len(self.running) > self.rows:
            return False
        first, *longest = [min(self.rank(job) for job in jobs)[:2]
                           for jobs in (self.waiting, self.running) if jobs]
        return not longest or (0 < self.held < FILL and first <= longest[0])

    def advance(self, taken: dict[int, int]) -> None:
        for job in [*self.running]:
            job.done += taken.get(job.number, 0)
            if job.done == job.prompt + job.made and job.number in taken:
                job.made += 1
                if self.rule == "fair":
                    self.counters[job.tenant] += 2
            if job.made == job.output:
                self.running.remove(job)

    def serve(self, limit: int, decodes: bool) -> dict[int, int]:
        return self.share(limit, [job for job in self.running if decodes or not job.decodes])

    def share(self, limit: int, able: list[Job]) -> dict[int, int]:
        taken: dict[int, int] = {}
        for job in sorted(able, key=lambda job: (job.wants > 1, self.rank(job))):
            count = min(job.wants, limit - sum(taken.values()))
            if count > 1 and count == job.wants - 1:
                count -= 1  # a last token alone would be a decode
            if count:
                taken[job.number] = count
        return taken

    def start(self, taken: dict[int, int], limit: int, most: int, whole: bool) -> None:
        prompts = any(job.number in taken and not job.decodes for job in self.running)
        if self.waiting and len(self.running) < self.rows and limit > sum(taken.values()) and most:
            eldest = min(self.waiting, key=lambda job: job.number)
            eldest.aged |= eldest.passed >= self.patience
        lifted = self.rule != "fair"
        while most and self.waiting and len(self.running) < self.rows:
            left = limit - sum(taken.values())
            if left and not lifted and not any(job.aged for job in self.waiting):
                self.lift()
                lifted = True
            job = min(self.waiting, key=self.next_key)
            if not left or (whole and prompts and job.prompt > left):
                return
            taken[job.number] = min(job.prompt, left)
            prompts, most, self.batch = True, most - 1, self.batch - 1
            self.waiting.remove(job)
            self.running.append(job)
            if self.waiting and (eldest := min(self.waiting, key=lambda job: job.number)).number < job.number:
                eldest.passed += 1
            if self.rule == "fair":
                self.counters[job.tenant] = self.counters.get(job.tenant, 0) + job.prompt
                if all(other.tenant != job.tenant for other in self.waiting):
                    self.lanes.discard(job.tenant)
                    self.level = self.counters[job.tenant]

    def next_key(self, job: Job) -> tuple[int, ...]:
        aged, key, number = self.rank(job)
        return (aged, self.counters.get(job.tenant, 0) if self.rule == "fair" and aged else key, number)

    def lift(self) -> None:
        lanes = {job.tenant for job in self.waiting}
        level = min((self.counters[tenant] for tenant in lanes & self.lanes), default=self.level)
        for tenant in lanes - self.lanes:
            self.counters[tenant] = max(self.counters.get(tenant, 0), level)
        self.lanes = lanes


MANY = 2  # rows from which `throughput` gathers prompts, here


def made(rule: str) -> Policy:
    """The policy; the one for large batches as if these were."""
    policy = make_policy(rule, NEEDS)
    if isinstance(policy, Throughput):
        policy.many, policy.patience = MANY, 6
    return policy


JOBS = st.lists(st.builds(
    Job, number=st.just(0), at=st.integers(0, 25), prompt=st.sampled_from([1, 2, 5, 9, 20, 23, 40, 60]),
    output=st.integers(1, 12), priority=st.integers(0, 2), tenant=st.sampled_from("abc")),
    min_size=1, max_size=30)
RULES = ["static", "fcfs", "prefill", "chunked:7", "priority", "fair", "shortest", "throughput"]


def numbered(work: list[Job]) -> list[Job]:
    work = sorted(work, key=lambda job: job.at)
    return [Job(number=number, at=job.at, prompt=job.prompt, output=job.output, priority=job.priority,
                tenant=job.tenant) for number, job in enumerate(work)]


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=8, deadline=None)
@given(work=JOBS, rows=st.integers(1, 5))
def test_a_policy_gives_what_its_rule_says(rule: str, work: list[Job], rows: int) -> None:
    """Step by step the same tokens for the same requests, until all have ended."""
    policy = made(rule)
    if rule == "priority":
        policy.outranks = lambda waiting, running: False  # type: ignore[method-assign]  # see test_scheduler
    engine, twin, work = Engine(policy, rows), Twin(rows, rule, policy.patience), numbered(work)
    for step in range(3000):
        for job in [job for job in work if job.at == step]:
            engine.add(job)
            twin.waiting.append(job)
        assert engine.step(step) == twin.step(), step
        if step > 25 and not twin.waiting and not twin.running:
            break
    assert sorted(engine.ended) == list(range(len(work)))


# ---- latency targets

SLO = Targets(ttft_s=7.3, tpot_s=2.0)
SLO_STEP = 96


def slo_seconds(num_tokens: float) -> float:
    """Up to 32 tokens cost what one does."""
    return max(1.0, num_tokens / 32)


class SloTwin(Twin):
    """What `slo` says it does, looked for by trying: the most tokens that fit, one after another."""

    def step_at(self, now: float) -> dict[int, int]:
        if not self.waiting and not self.running:
            return {}
        limit, held, line = SLO_STEP, [], sorted(self.waiting, key=self.rank)
        prompts = [job for job in self.running if not job.decodes]
        if prompts or (self.waiting and len(self.running) < self.rows):
            decodes = len(self.running) - len(prompts)
            most = KEPT * 2.0 * 32 - decodes
            line, work = self.classes(now, prompts, most / (KEPT * 2.0))
            late = [job for job in prompts if self.due(job) < now]
            held = [job for job in late if self.held < HELD
                    and any(rank <= job.priority and due < np.inf for rank, due, _ in work)]
            limit = min(SLO_STEP, decodes + self.size(now, work, decodes, int(most)))
        self.held = self.held + 1 if held else 0
        taken = self.share(limit, [job for job in self.running if job not in held])
        for job in line:
            left = limit - sum(taken.values())
            if left and len(self.running) < self.rows:
                taken[job.number] = min(job.prompt, left)
                self.waiting.remove(job)
                self.running.append(job)
        if not taken:
            self.held, taken = 0, self.share(limit, self.running)
        self.advance(taken)
        return taken

    @staticmethod
    def due(job: Job) -> float:
        return job.at + 7.3

    def classes(self, now: float, prompts: list[Job],
                rate: float) -> tuple[list[Job], list[tuple[int, float, int]]]:
        """Who starts in which order, and (class, deadline, tokens) of all that is to be computed: each class
        behind the whole of the sooner ones, as long as these leave rows."""
        line: list[Job] = []
        work = [(job.priority, self.due(job) if self.due(job) >= now else np.inf, job.prompt - job.done)
                for job in prompts]
        for rank in range(3):
            waiting = [job for job in self.waiting if job.priority == rank]
            looked = len(line) < self.rows - len(self.running) + LOOK
            busy = sum(tokens for other, due, tokens in work
                       if other < rank or (other == rank and due < np.inf))
            kept = self.on_time(now, busy, rate, waiting)
            rest = sorted((job for job in waiting if job not in kept), key=lambda job: self.due(job) < now)
            line += [*kept, *rest] if looked else waiting
            work += [(rank, self.due(job) if job in kept else np.inf, job.prompt)
                     for job in [*kept, *rest] if looked]
        return line, work

    def on_time(self, now: float, busy: int, rate: float, waiting: list[Job]) -> list[Job]:
        """Of those that can still make it, in order: at each that would not, the longest so far is put
        off."""
        kept: list[Job] = []
        for job in [job for job in waiting if self.due(job) > now]:
            kept.append(job)
            if now + (busy + sum(one.prompt for one in kept)) / rate > self.due(job):
                kept.remove(max(kept, key=lambda one: (one.prompt, -one.number)))
        return kept

    @staticmethod
    def size(now: float, work: list[tuple[int, float, int]], decodes: int, most: int) -> int:
        """Prompt tokens: what costs nothing, or what work needs at an even pace in half of its time, behind
        sooner classes."""
        rate, total = 0.0, 0
        for _, due_s, tokens in sorted(work):
            total += tokens
            rate = max(rate, total / max(0.5 * (due_s - now), 1e-6))
        free = max(t for t in range(most + 1) if slo_seconds(decodes + t) == 1.0)
        even = max(t for t in range(most + 1) if t <= rate * slo_seconds(decodes + t))
        return min(max(free, even, LEAST), most)


@settings(max_examples=30, deadline=None)
@given(work=JOBS, rows=st.integers(1, 5))
def test_slo_gives_what_its_rule_says(work: list[Job], rows: int) -> None:
    """Whole steps: their size, who is held and who starts, while the queue outgrows the targets."""
    def price(step: Shape | StepPlan) -> float:
        return slo_seconds(float(step.count.sum()))

    engine = Engine(make_policy("slo", Needs(targets=SLO, price=price)), rows, step_tokens=SLO_STEP)
    engine.seconds = price
    engine.policy.outranks = lambda waiting, running: False  # type: ignore[method-assign]  # see test_targets
    twin, work = SloTwin(rows, "slo"), numbered([replace(job, prompt=2 * job.prompt) for job in work])
    for step in range(3000):
        for job in [job for job in work if job.at == step]:
            engine.add(job)
            twin.waiting.append(job)
        assert engine.step(step) == twin.step_at(step), step
        if step > 25 and not twin.waiting and not twin.running:
            break
    assert sorted(engine.ended) == list(range(len(work)))


# ---- whole batches


def batch_seconds(rule: str, work: list[Job]) -> float:
    """Of a batch on 8 rows. A step reads weights for 4 s and multiplies for 1/8 s a token, both at once."""
    engine, seconds = Engine(made(rule), rows=8), 0.0
    for job in work:
        engine.add(job)
    while len(engine.ended) < len(work):
        seconds += max(4.0, sum(engine.step(0).values()) / 8)
    return seconds


def test_a_batch_of_known_lengths_ends_sooner_longest_first() -> None:
    """The longest answer is asked for last, and begun last it runs alone for half of the time."""
    work = [Job(number=number, at=0, prompt=9, output=5 + 13 * number % 23) for number in range(40)]
    work.append(Job(number=40, at=0, prompt=9, output=90))
    assert batch_seconds("throughput", work) < 0.7 * batch_seconds("fcfs", work)


def test_answers_that_may_end_sooner_are_as_long_as_expected() -> None:
    """By their caller, or by what their tenant's were; those that cannot are as long as asked for."""
    engine = Engine(make_policy("throughput"), rows=1)
    engine.add(Job(number=0, at=0, prompt=4, output=2))
    while engine.scheduler.has_requests:
        engine.step(0)
    for number, (stop, expected) in enumerate(((("x",), None), (("x",), 3), ((), None)), 1):
        engine.scheduler.add(NewRequest(
            id=str(number), prompt=np.full(4, 1, np.int32), predicted_output=expected,
            params=SamplingParams(seed=1, max_tokens=4, ignore_eos=not stop, stop=stop)))
    while engine.scheduler.has_requests:
        engine.step(0)
    assert engine.ended == [0, 3, 2, 1]


@pytest.mark.parametrize("rule", ["chunked", "chunked:0", "chunked:x", "fcfs:4"])
def test_a_wrong_setting_says_what_is_right(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"write it like chunked:512|at least 1|takes no setting"):
        make_policy(rule)


# ---- ageing


@pytest.mark.parametrize("rule", ["fcfs", "chunked:16", "shortest", "fair", "slo", "reuse", "throughput"])
def test_a_request_without_room_is_passed_but_not_for_ever(rule: str) -> None:
    """The pool is half taken for long; the large one behind does not fit, small ones pass it `patience`
    times, then nobody does until it has run."""
    policy = make_policy(rule, NEEDS)
    policy.patience = 5
    engine = Engine(policy, rows=6, num_pages=41)
    engine.add(Job(number=0, at=0, prompt=60, output=60))
    engine.step(0)
    engine.add(Job(number=1, at=1, prompt=120, output=2))
    started = [0]
    for step in range(1, 130):
        engine.add(Job(number=1 + step, at=step, prompt=5, output=3))
        started += [number for number in engine.step(step) if number not in started]
    place = started.index(1)
    assert 2 <= place <= 1 + policy.patience
    assert engine.ended.index(0) < engine.ended.index(1)


SIZES = st.tuples(st.integers(1, 60), st.integers(1, 12))


@pytest.mark.parametrize("rule", [*RULES, "slo", "reuse"])
@settings(max_examples=4, deadline=None)
@given(victim=SIZES, before=st.lists(SIZES, max_size=3), rivals=st.lists(SIZES, min_size=1, max_size=3),
       rows=st.integers(1, 3), num_pages=st.integers(22, 40))
def test_nobody_waits_beyond_the_proved_bound(rule: str, victim: tuple[int, int],
                                              before: list[tuple[int, int]], rivals: list[tuple[int, int]],
                                              rows: int, num_pages: int) -> None:
    """`admit`'s step 3, while more urgent, shorter, other tenants' requests keep coming."""
    policy = made(rule)
    policy.patience = 3
    engine = Engine(policy, rows, num_pages)
    ahead = [*before, victim]
    for number, (prompt, output) in enumerate(ahead):
        engine.add(Job(number=number, at=0, prompt=prompt, output=output, priority=2))
    longest = max(prompt + output for prompt, output in [*ahead, *rivals])
    held = {"prefill": STALL, "slo": HELD, "throughput": FILL}.get(rule, 0)
    bound = (len(ahead) * (policy.patience + 1) + rows) * longest * 3 * (held + 1)
    for step in range(bound):
        if engine.scheduler.load().waiting < 4:
            prompt, output = rivals[step % len(rivals)]
            engine.add(Job(number=len(ahead) + step, at=step, prompt=prompt, output=output,
                           tenant=str(step % 7)))
        engine.step(step)
        if len(before) in engine.ended:
            return
    raise AssertionError(f"waited for more than {bound} steps")
