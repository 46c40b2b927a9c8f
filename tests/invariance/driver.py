"""Runs jobs through the real scheduler, cache manager and runner on a tiny float32 model, and compares texts.

A difference between two runs is a near tie only if, where they first differ, the two tokens' scores
(log-probability over temperature, plus the seed's noise) lie within 1e-3 of each other in both runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.adapters.slots import AdapterSlots
from ridgeline.base.clock import WallClock
from ridgeline.kv.manager import KVManager
from ridgeline.nn.build import Model, build_model
from ridgeline.runner.gpu import GpuExecutor
from ridgeline.runner.noise import gumbel
from ridgeline.runner.runner import LocalExecutor
from ridgeline.runner.speculate.draft import DraftModel
from ridgeline.runner.speculate.ngram import Ngram
from ridgeline.runner.speculate.speculator import Drafter
from ridgeline.runner.speculate.texts import Texts
from ridgeline.schedule.door import mix_seed
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.plan import RowLogprobs
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.pressure import NO_PRESSURE, Pressure
from ridgeline.schedule.request import NewRequest
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.schedule.speculate import Long, Speculation
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tiny_capped, tiny_latent, tiny_mixture, tiny_shared, tiny_spec, tiny_weights

NEAR = 1e-3
MOST_EXCUSED = 0.02
MOST_DRAFTS = 3
MODELS: dict[str, ModelSpec] = {"dense": tiny_spec(), "mixed": tiny_spec(windows=(None, 9))}
KINDS: dict[str, ModelSpec] = {"mixture": tiny_mixture(), "capped": tiny_capped(), "latent": tiny_latent(),
                               "shared": tiny_shared()}


@dataclass(frozen=True, kw_only=True)
class Job:
    prompt: tuple[int, ...]
    params: SamplingParams
    at: int = 0
    priority: int = 0
    adapter: int = 0

    def alone(self, choice: int) -> "Job":
        """The same choice as a request of its own."""
        assert self.params.seed is not None
        seed = self.params.seed if choice == 0 else mix_seed(self.params.seed, choice)
        return replace(self, params=replace(self.params, n=1, seed=seed), at=0, priority=0)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How an engine is sized. The default runs one request as plainly as can be. speculate: "ngram" or
    "draft" drafts as much as can be in every step; draft_pages: of the draft model. seed: of requests without
    one. num_host_pages: then whoever is preempted is swapped. check: every invariant after every step.
    may_fail: an error is a text's end, not the test's."""

    num_pages: int = 200
    num_rows: int = 6
    max_step_tokens: int = 512
    depth: int = 1
    prefix_caching: bool = False
    cache: bool = True
    policy: str = "fcfs"
    snapshot_stride: int = 0
    snapshot_bytes: int | None = None
    speculate: str = ""
    draft_pages: int = 60
    block_tokens: int = 4
    num_host_pages: int = 0
    seed: int = 0
    check: bool = True
    may_fail: bool = False


class Eager(Speculation):
    """Drafts whatever it can."""

    def choose(self, start: Long, counts: Long, room: Long, most: int) -> Long | None:
        draft = np.maximum(self.able(room), 0)
        while draft.sum() > max(0, most):
            draft[draft.argmax()] -= 1
        return draft if draft.any() else None


@dataclass
class Text:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[RowLogprobs] = field(default_factory=list)
    pooled: NDArray[np.float32] | None = None
    error: str | None = None


@dataclass
class Run:
    """texts by (job, choice), and the loop's numbers at the end."""

    texts: dict[tuple[int, int], Text]
    stats: dict[str, object]


class Tiny:
    """One tiny model, run under any setup. The texts that requests have alone are kept. draft_noise: by which
    the weights of its draft model differ. sharpness: of its distributions. adapters: slots that are filled.
    apart: deterministic."""

    def __init__(self, spec: ModelSpec, *, draft_noise: float = 0.03, sharpness: float = 1.0,
                 adapters: AdapterSlots | None = None, apart: bool = False) -> None:
        self.spec = spec
        self.weights = tiny_weights(self.spec)
        self.weights["final_norm.weight"] *= sharpness
        self.model: Model = build_model(
            self.spec, self.weights, torch.float32, adapters=adapters, apart=apart)
        self.draft_noise = draft_noise
        self._alone: dict[str, Text] = {}

    def alone(self, job: Job) -> Text:
        key = repr(job)
        if key not in self._alone:
            self._alone[key] = self.run(Setup(), [job]).texts[0, 0]
        return self._alone[key]

    def run(self, setup: Setup, jobs: Sequence[Job], *, warm: Sequence[Job] = ()) -> Run:
        """All jobs, each arriving at its step, after the warm ones have finished."""
        executor = self._executor(setup)
        try:
            loop = self._loop(setup, executor)
            _drain(loop, "warm", warm)
            texts = _drain(loop, "", jobs, check=setup.check, may_fail=setup.may_fail)
            return Run(texts, dict(loop.stats()))
        finally:
            executor.close()

    def _executor(self, setup: Setup) -> LocalExecutor | GpuExecutor:
        capacity = self._capacity(setup)
        drafter = self._drafter(setup, capacity) if setup.speculate else None
        executor = LocalExecutor(self.model, capacity, cache_dtype=torch.float32, device=torch.device("cpu"),
                                 clock=WallClock(), threads=1, drafter=drafter)
        executor.max_in_flight = setup.depth
        return executor

    def _capacity(self, setup: Setup) -> Capacity:
        return Capacity(
            layout=plan_layout(self.spec.cache(4), block_tokens=setup.block_tokens),
            num_pages=setup.num_pages, num_rows=setup.num_rows, max_step_tokens=setup.max_step_tokens,
            max_model_len=160, vocab_size=self.spec.vocab_size, num_host_pages=setup.num_host_pages)

    def _drafter(self, setup: Setup, capacity: Capacity) -> Drafter:
        texts = Texts()
        if setup.speculate == "ngram":
            return Drafter(texts, Ngram(texts, MOST_DRAFTS), WallClock())
        noise = tiny_weights(self.spec, seed=1)
        near = {name: weight + self.draft_noise * noise[name] for name, weight in self.weights.items()}
        draft = DraftModel(
            build_model(self.spec, near, torch.float32), replace(capacity, num_pages=setup.draft_pages),
            cache_dtype=torch.float32, device=torch.device("cpu"), texts=texts, most=MOST_DRAFTS)
        return Drafter(texts, draft, WallClock())

    def _loop(self, setup: Setup, executor: LocalExecutor | GpuExecutor) -> Loop:
        manager = KVManager(executor.capacity().layout, setup.num_pages, prefix_caching=setup.prefix_caching,
                            snapshot_stride=setup.snapshot_stride, snapshot_bytes=setup.snapshot_bytes,
                            num_host_pages=setup.num_host_pages)
        scheduler = Scheduler(
            executor.capacity(), manager, make_policy(setup.policy),
            max_num_batched_tokens=setup.max_step_tokens, max_num_seqs=setup.num_rows,
            eos_token_ids=self.spec.eos_token_ids, cache=setup.cache, seed=setup.seed,
            speculation=Eager(setup.num_rows, MOST_DRAFTS, lambda step: 1.0) if setup.speculate else None,
            pressure=Pressure(swap_s=lambda num_bytes: 0.0) if setup.num_host_pages else NO_PRESSURE)
        return Loop(scheduler, executor, WallClock())


def _drain(loop: Loop, prefix: str, jobs: Sequence[Job], *,
           check: bool = True, may_fail: bool = False) -> dict[tuple[int, int], Text]:
    texts = {(i, choice): Text() for i, job in enumerate(jobs) for choice in range(job.params.n)}
    waiting = sorted(range(len(jobs)), key=lambda i: jobs[i].at)
    step = 0
    while waiting or loop.has_work():
        while waiting and jobs[waiting[0]].at <= step:
            job = jobs[waiting[0]]
            prompt = np.array(job.prompt, np.int32)
            loop.add(NewRequest(id=f"{prefix}{waiting.pop(0)}", prompt=prompt, params=job.params,
                                priority=job.priority, arrived_s=float(step), adapter=job.adapter,
                                cache_salt=str(job.adapter)))
        for output in loop.step():
            assert output.error is None or may_fail, output.error
            text = texts[int(output.id.removeprefix(prefix)), output.choice]
            text.error = output.error
            text.tokens += output.new_tokens
            text.logprobs += output.logprobs
            text.pooled = text.pooled if output.pooled is None else output.pooled
        if check:
            loop.check()
        step += 1
    return texts


@dataclass
class Tally:
    """Texts compared, and those excused as near ties."""

    compared: int = 0
    excused: int = 0

    def compare(self, tiny: Tiny, setup: Setup, jobs: Sequence[Job], *, warm: Sequence[Job] = ()) -> Run:
        """Every choice of the run must say what it says alone, near ties apart."""
        run = tiny.run(setup, jobs, warm=warm)
        for (index, choice), text in run.texts.items():
            self.compared += 1
            job = jobs[index].alone(choice)
            if text.tokens != tiny.alone(job).tokens:
                assert _near_tie(tiny, setup, jobs, warm, index, choice), (
                    f"{job}: {text.tokens} in {setup}, alone {tiny.alone(job).tokens}")
                self.excused += 1
        return run

    def report(self, what: str) -> None:
        share = self.excused / max(1, self.compared)
        print(f"{what}: {self.compared} texts, {self.excused} excused as near ties ({share:.2%})")
        assert share <= MOST_EXCUSED


def _near_tie(tiny: Tiny, setup: Setup, jobs: Sequence[Job], warm: Sequence[Job], index: int,
              choice: int) -> bool:
    """Run both again with all log-probabilities and look at the first place where they differ."""
    everything = tiny.spec.vocab_size
    asking = [replace(job, params=replace(job.params, logprobs=everything)) for job in jobs]
    there = tiny.run(setup, asking, warm=warm).texts[index, choice]
    here = tiny.alone(asking[index].alone(choice))
    place = next((i for i, (a, b) in enumerate(zip(there.tokens, here.tokens)) if a != b), None)
    if place is None:
        return False
    job = asking[index].alone(choice)
    pair = (there.tokens[place], here.tokens[place])
    position = len(job.prompt) + place
    return all(abs(_score(text.logprobs[place], job.params, position, pair[0])
                   - _score(text.logprobs[place], job.params, position, pair[1])) < NEAR
               for text in (there, here))


def _score(found: RowLogprobs, params: SamplingParams, position: int, token: int) -> float:
    logprob = float(found.logprobs[found.token_ids.tolist().index(token)])
    if params.greedy:
        return logprob
    assert params.seed is not None
    return logprob / params.temperature + float(gumbel(params.seed, position, torch.tensor([token]))[0])
