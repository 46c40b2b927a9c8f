"""Random traffic through tiny pools: whatever is batched, chunked, reused, preempted, forked, aborted or
pipelined, every choice says what it says alone, everybody finishes, and nothing is left behind."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from ridgeline.base.errors import RequestError
from ridgeline.schedule.door import mix_seed
from ridgeline.schedule.plan import StepPlan
from ridgeline.schedule.pressure import NO_PRESSURE, Pressure
from ridgeline.schedule.request import Finish
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import VOCAB, Harness, expected

POLICIES = ["fcfs", "priority", "static", "prefill", "chunked:6", "fair", "shortest", "reuse", "slo",
            "throughput"]
# Prompts share prefixes of these, so that hits of whole and of part blocks happen.
BASES = ([3 + i % 30 for i in range(40)], [5 + (i * i) % 29 for i in range(40)])


@dataclass(frozen=True)
class Job:
    prompt: list[int]
    params: SamplingParams
    at: int
    priority: int
    salt: str
    abort_at: int | None = None
    abort_choice: int | None = None
    keep: int | None = None


@dataclass(frozen=True)
class Setup:
    kind: str
    num_pages: int
    num_rows: int
    max_step_tokens: int
    depth: int
    policy: str
    prefix_caching: bool
    max_model_len: int = 40
    cache: bool = True
    speculate: int = 0
    num_host_pages: int = 0


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    shared = draw(st.sampled_from(BASES))[:draw(st.integers(0, 22))]
    prompt = shared + draw(st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=4))
    params = SamplingParams(
        seed=draw(st.integers(0, 3)), n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        max_tokens=draw(st.sampled_from([None, 0, 1, 2, 5, 9, 16, 60])), ignore_eos=draw(st.booleans()),
        min_tokens=draw(st.sampled_from([0, 0, 3])), logprobs=draw(st.sampled_from([None, None, 0])),
        prompt_logprobs=draw(st.sampled_from([None, None, 0])),
        stop_token_ids=draw(st.sampled_from([(), (), (11, 12, 13)])))
    aborted = draw(st.sampled_from([False, False, True]))
    return Job(prompt=prompt, params=params, at=draw(st.integers(0, 12)), priority=draw(st.integers(0, 2)),
               salt=draw(st.sampled_from(["", "", "other"])),
               abort_at=draw(st.integers(0, 30)) if aborted else None,
               abort_choice=draw(st.sampled_from([None, 0, 1])) if aborted else None,
               keep=draw(st.sampled_from([None, 0, 2])) if aborted else None)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    num_rows = draw(st.integers(1, 5))
    return Setup(kind=draw(st.sampled_from(["paged", "window", "mixed"])), num_pages=draw(st.integers(8, 22)),
                 num_rows=num_rows, max_step_tokens=draw(st.integers(num_rows, 20)),
                 depth=draw(st.integers(1, 3)), policy=draw(st.sampled_from(POLICIES)),
                 prefix_caching=draw(st.booleans()), speculate=draw(st.sampled_from([0, 3])),
                 num_host_pages=draw(st.sampled_from([0, 0, 5, 40])))


def harness_of(setup: Setup, **faults: Any) -> Harness:
    return Harness(
        setup.kind, num_pages=setup.num_pages, num_rows=setup.num_rows, max_step_tokens=setup.max_step_tokens,
        depth=setup.depth, policy=setup.policy, prefix_caching=setup.prefix_caching, cache=setup.cache,
        max_model_len=setup.max_model_len, speculate=setup.speculate, num_host_pages=setup.num_host_pages,
        pressure=Pressure(swap_s=lambda num_bytes: 0.0) if setup.num_host_pages else NO_PRESSURE, **faults)


def run(harness: Harness, work: list[Job]) -> Harness:
    """Everything arrives and is aborted at its step; then the rest runs to its end."""
    most = harness.scheduler.max_request_tokens
    for step in range(max((max(job.at, job.abort_at or 0) for job in work), default=0) + 1):
        for index, job in enumerate(work):
            if job.at == step:
                if len(job.prompt) >= most:
                    with pytest.raises(RequestError):
                        harness.add(str(index), job.prompt, job.params, priority=job.priority, salt=job.salt)
                else:
                    harness.add(str(index), job.prompt, job.params, priority=job.priority, salt=job.salt)
            if job.abort_at == step:
                harness.loop.abort(str(index), job.abort_choice, job.keep)
        harness.step()
    harness.run()
    return harness


def check_told(harness: Harness, work: list[Job]) -> None:
    """Every accepted choice said what it says alone, or a prefix of it when it was aborted or failed."""
    most = harness.scheduler.max_request_tokens
    for index, job in enumerate(work):
        if len(job.prompt) >= most:
            continue
        for choice in range(job.params.n):
            seed = job.params.seed if choice == 0 else mix_seed(job.params.seed, choice)
            tokens, finish = expected(job.prompt, job.params, seed, most)
            told = harness.told[str(index), choice]
            assert told.last is not None, f"request {index} choice {choice} never ended"
            assert told.last.num_prompt == len(job.prompt) and told.last.num_cached < len(job.prompt)
            assert len(told.logprobs) == (0 if job.params.logprobs is None else len(told.tokens))
            assert [int(s.token_ids[0]) for s in told.logprobs] == told.tokens[:len(told.logprobs)]
            if told.last.finish is Finish.ERROR:
                assert told.last.error and told.tokens == tokens[:len(told.tokens)]
                continue
            cut = told.last.finish is Finish.ABORT or (job.keep is not None and told.last.stop_token is None)
            if job.abort_at is not None and job.abort_choice in (None, choice) and cut:
                assert told.tokens == tokens[:len(told.tokens)]
                kept = len(told.tokens) if job.keep is None else min(job.keep, len(told.tokens))
                if told.last.finish is not Finish.LENGTH:
                    assert told.last.num_output == kept
                continue
            assert (told.tokens, told.last.finish) == (tokens, finish)
            assert told.last.num_output == len(tokens)
            owed = job.params.prompt_logprobs is not None and choice == 0
            assert [p for p, _ in told.prompt_logprobs] == (list(range(1, len(job.prompt))) if owed else [])
            assert [int(s.token_ids[0]) for _, s in told.prompt_logprobs] == (job.prompt[1:] if owed else [])


def test_drafts_bring_more_tokens_a_step() -> None:
    """A row that verifies takes what stands of its slots, to the end of the context; the books agree."""
    harnesses = [Harness(speculate=speculate, max_model_len=40) for speculate in (0, 3)]
    work = [Job(prompt=base[:5], params=SamplingParams(seed=1, ignore_eos=True), at=0, priority=0, salt="")
            for base in BASES]
    for harness in harnesses:
        check_told(run(harness, work), work)
    plain, drafted = (harness.loop.stats() for harness in harnesses)
    assert drafted["num_steps"] < 0.7 * plain["num_steps"]
    assert 0 < drafted["num_accepted_tokens"] < drafted["num_draft_tokens"]
    verified = drafted["num_verified"]
    assert sum(int(num) * times for num, times in verified.items()) == drafted["num_draft_tokens"]


SETTINGS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(setup=setups(), work=st.lists(jobs(), min_size=1, max_size=9))
def test_any_traffic_says_what_each_request_says_alone(setup: Setup, work: list[Job]) -> None:
    harness = run(harness_of(setup), work)
    note(str(harness.loop.stats()))
    check_told(harness, work)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(SETTINGS, max_examples=3000)
@given(setup=setups(), work=st.lists(jobs(), min_size=1, max_size=14))
def test_any_traffic_at_length(setup: Setup, work: list[Job]) -> None:
    """The same with many more examples."""
    check_told(run(harness_of(setup), work), work)


@settings(SETTINGS, max_examples=20)
@given(work=st.lists(jobs(), min_size=1, max_size=6), kind=st.sampled_from(["paged", "window", "mixed"]),
       num_rows=st.integers(1, 4))
def test_the_naive_path_says_the_same(work: list[Job], kind: str, num_rows: int) -> None:
    """cache=False recomputes everything in every step and must not differ."""
    setup = Setup(kind=kind, num_pages=24, num_rows=num_rows, max_step_tokens=44, depth=2, policy="fcfs",
                  prefix_caching=False, cache=False)
    harness = run(harness_of(setup), work)
    check_told(harness, work)
    assert all(not plan.start.any() for plan in harness.executor.plans)


@settings(SETTINGS, max_examples=30)
@given(setup=setups(), work=st.lists(jobs(), min_size=1, max_size=9), salt=st.integers(0, 100),
       early=st.booleans(), how=st.sampled_from(["rows", "steps"]))
def test_faults_hurt_only_their_own(setup: Setup, work: list[Job], salt: int, early: bool, how: str) -> None:
    """Rows that fail and steps that raise, before or after the device has worked: the others do not notice,
    what the failed wrote is never reused, nothing is left behind."""
    def unlucky(plan: StepPlan) -> bool:
        return how == "steps" and hash((plan.step, salt)) % 7 == 0

    def fail(plan: StepPlan) -> list[int]:
        return [i for i in range(plan.num_rows) if how == "rows" and hash((plan.step, i, salt)) % 13 == 0]

    harness = harness_of(setup, fail=fail, lose=lambda plan: early and unlucky(plan),
                         blow_up=lambda plan: RuntimeError("on purpose") if unlucky(plan) else None)
    check_told(run(harness, work), work)


@settings(SETTINGS, max_examples=30)
@given(setup=setups(),
       lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 15)), min_size=2, max_size=10))
def test_nobody_starves(setup: Setup, lengths: list[tuple[int, int]]) -> None:
    """First come, first served: a request ends within the steps that it and everybody before it need one by
    one.

    Alone a request of p prompt tokens and m outputs takes at most p + m steps of computing; while the first
    in rank computes, it advances at least every depth + 2 steps (it may wait for pages of steps in flight).
    """
    setup = replace(setup, policy="fcfs")
    harness = harness_of(setup)
    bound, bounds = 0, {}
    for index, (num_prompt, num_output) in enumerate(lengths):
        if num_prompt >= harness.scheduler.max_request_tokens:
            continue
        harness.add(str(index), BASES[index % 2][:num_prompt],
                    SamplingParams(seed=index, max_tokens=num_output, ignore_eos=True))
        bound += (num_prompt + num_output + 1) * (setup.depth + 2)
        bounds[str(index)] = bound
    ended: dict[str, int] = {}
    for step in range(bound + 1):
        for output in harness.step():
            if output.finish is not None:
                ended[output.id] = step
    assert set(ended) == set(bounds)
    assert all(ended[name] <= bounds[name] for name in bounds)
    harness.assert_clean()
