"""`ridgeline calibrate`: measures this machine and the steps of engines on it, fits what they reach of their
floors and writes a profile that plans and benchmarks use when it is named.

The steps are of models with random weights (of the default model where a processor multiplies packed
weights), at a few batches and contexts each: what is judged later is another model, or another batch at
another context. A processor's speed drifts by a fifth within tens of seconds where others share its host: it
goes through all steps several times, each time in another order, so that no kind of step is measured in the
better moments, and each counts with the median over these passes.
"""

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median

import torch

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.bench.report import seconds_text
from ridgeline.bench.steps import STEPS, Measured, Stepper
from ridgeline.engine.floors import profile_name
from ridgeline.engine.machine import num_cores
from ridgeline.engine.measure import measure_machine
from ridgeline.engine.probe import probe_gpu, probe_machine
from ridgeline.ledger.calibrate import Point, calibrate_steps
from ridgeline.ledger.efficiency import Calibration
from ridgeline.ledger.profile import MachineProfile, save_profile
from ridgeline.ledger.sums import Rows

_FEWEST = 8  # decode steps of a case in one pass
_PROMPTS, _SMALL = 3, 256  # prompts of a case at most; with several passes, tokens of them together
_LEAST_PASSES, _MOST_S, _SAY_S = 3, 240.0, 2.0
_DISTURBED = 0.5  # of a pass over the fastest one, from which it is said: drift alone makes 0.2 to 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step: so many decodes with context tokens behind each, and beside them, or alone, a prompt of so many
    tokens (0: none). pause_s: in which nothing runs, before it."""

    rows: int
    context: int = 0
    prompt: int = 0
    pause_s: float = 0.0

    @property
    def tokens(self) -> int:
        return self.rows + self.prompt

    def parts(self, context: int) -> list[Rows]:
        """The step's rows, decodes with so many keys each."""
        decodes, prompt = (Rows(rows=self.rows, start=context - 1, count=1),
                           Rows(rows=1, start=0, count=self.prompt))
        return [part for part, there in ((decodes, self.rows), (prompt, self.prompt)) if there]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a kind of device is measured with. models: (name, load format). rows: of decode steps. contexts:
    behind each row, the second at most so long that `tokens` are in the cache. prompts: tokens of the steps
    with a prompt; beside: how many of them are decodes. pause_s: before prompts that come alone, once more
    (0: not at all). passes: through all steps, fewer (but _LEAST_PASSES) where they take more than _MOST_S.
    cache_bytes: of each engine, None for its own choice."""

    models: Sequence[tuple[str | None, str]]
    rows: Sequence[int]
    contexts: tuple[int, int]
    tokens: int
    prompts: Sequence[int]
    beside: Sequence[int] = (0,)
    pause_s: float = 0.0
    passes: int = 1
    cache_bytes: int | None = None

    def cases(self) -> list[Case]:
        """One pass. A prompt of one token would be a decode."""
        return [Case(rows=rows, context=context) for rows in self.rows
                for context in (self.contexts[0], min(self.contexts[1], self.tokens // rows))
                ] + [Case(rows=rows, context=sum(self.contexts) // 2 if rows else 0, prompt=tokens - rows)
                     for tokens in self.prompts for rows in self.beside if tokens - rows > 1
                ] + [Case(rows=0, prompt=tokens, pause_s=self.pause_s)
                     for tokens in self.prompts if self.pause_s]


# One large model and one small one: bytes and launches weigh differently in their steps.
GPU = Course(models=(("mistral-7b", "dummy"), ("qwen3-0.6b", "dummy")), rows=(1, 8, 16, 32, 64, 128),
             contexts=(512, 6144), tokens=200_000, prompts=(32, 128, 512, 2048), cache_bytes=40_000_000_000)
CPU = Course(models=((None, "auto"),), rows=(1, 2, 3, 4, 5, 6, 8, 12, 16, 24), contexts=(48, 400),
             tokens=3200, prompts=(2, 4, 8, 16, 32, 64, 128, 256, 512), beside=(0, 1, 6), pause_s=0.5,
             passes=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Measured steps by their tokens, each with its work at the profile's rates: decodes alone, and with
    prompts. woken: seconds of a prompt in a row of them, and after a pause. apart: how much longer the
    slowest of a few passes took over a step than the fastest, median over the steps; 0 with one pass."""

    decodes: dict[int, list[Point]] = field(default_factory=dict)
    prompts: dict[int, list[Point]] = field(default_factory=dict)
    woken: list[tuple[float, float]] = field(default_factory=list)
    apart: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateArgs:
    """profile: the name or path it is saved under, None for the machine's own name and "-calibrated". device:
    "auto", "cpu" or "cuda". threads: of a CPU, None for all cores."""

    profile: str | None = None
    device: str = "auto"
    threads: int | None = None


def run(args: CalibrateArgs, write: Callable[[str], object] = print) -> int:
    """Measure, fit, save, and say what was found; the exit code."""
    begun = time.perf_counter()
    on_gpu = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    if on_gpu and not torch.cuda.is_available():
        raise ConfigError("device cuda: torch finds no NVIDIA GPU here; use --device cpu")
    device = torch.device("cuda" if on_gpu else "cpu")
    torch.set_num_threads(args.threads or num_cores())
    name = args.profile or f"{profile_name(torch.get_num_threads())}-calibrated"
    profile = probe_gpu(name, device) if on_gpu else probe_machine(name)
    measured = measure_machine(device)
    write(profile.text())
    taken = course_steps(GPU if on_gpu else CPU, profile, device.type, args.threads, _say)
    profile = replace(profile, calibration=calibrate_steps(taken.decodes, taken.prompts, taken.woken,
                                                           measured))
    assert profile.calibration is not None
    write(report(profile.calibration, taken.apart))
    path, seconds = save_profile(profile), time.perf_counter() - begun
    write(f"saved as {path} after {seconds:.0f} s: name it with --profile")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def course_steps(course: Course, profile: MachineProfile, device: str, threads: int | None = None,
                 say: Callable[[str], object] = lambda text: None) -> Taken:
    """Measure all steps of a course. say: told how far it is."""
    taken = Taken()
    apart: list[float] = []
    for model, load_format in course.models:
        stepper = Stepper(EngineConfig(
            model=model, load_format=load_format, device=device, threads=threads, progress=False,
            max_num_seqs=max(*course.rows, *(rows + 1 for rows in course.beside)),
            max_num_batched_tokens=max(course.prompts) if any(course.beside) else None,
            prefix_caching=course.passes > 1, kv_cache_bytes=course.cache_bytes,
            max_model_len=2 * max(course.contexts)))
        try:
            work = stepper.engine.work(profile)
            found = _passes(stepper, course, say)
            took_s = {case: median(one.seconds for one in passes) for case, passes in found.items()}
            for case, passes in found.items():
                apart.append(max(one.seconds for one in passes) / min(one.seconds for one in passes) - 1)
                if case.pause_s:
                    taken.woken.append((took_s[replace(case, pause_s=0.0)], took_s[case]))
                    continue
                step = work(case.parts(round(median(one.context for one in passes))))
                (taken.prompts if case.prompt else taken.decodes).setdefault(case.tokens, []).append(
                    Point.of_step(step, took_s[case], about=stepper.engine.name))
        finally:
            stepper.close()
            del stepper
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    return replace(taken, apart=median(apart))


def _passes(stepper: Stepper, course: Course,
            say: Callable[[str], object]) -> dict[Case, list[Measured]]:
    """Every case of a course, once in each pass."""
    cases, random = course.cases(), Random(0)
    found: dict[Case, list[Measured]] = {case: [] for case in cases}
    begun = last = now = time.perf_counter()
    for number in range(course.passes):
        if number >= _LEAST_PASSES and (now - begun) * (number + 1) / number > _MOST_S:
            say(f"{number} passes instead of {course.passes}: they take long here")
            break
        for place, case in enumerate(random.sample(cases, len(cases))):
            found[case].append(_once(stepper, case, course.passes))
            if (now := time.perf_counter()) > last + _SAY_S:
                say(f"{stepper.engine.name}: pass {number + 1} of {course.passes}, step {place + 1} of "
                    f"{len(cases)}, {now - begun:.0f} s")
                last = now
    return found


def _once(stepper: Stepper, case: Case, passes: int) -> Measured:
    """In one of a few passes."""
    if not case.prompt:
        return stepper.decode(case.rows, case.context, max(STEPS // passes, _FEWEST))
    if case.pause_s:
        time.sleep(case.pause_s)
        return stepper.prompt(case.prompt, num=1)
    few = _PROMPTS if passes == 1 else min(_PROMPTS, max(_SMALL // case.tokens, 1))
    return stepper.prompt(case.prompt, case.rows, case.context, few)


def report(calibration: Calibration, apart: float) -> str:
    """The figures and the factors by tokens of a step."""
    lines = [f"  {name}: {value:.3g}" for name, value in calibration.measured.items()]
    for what, levels in (("decodes", calibration.decodes), ("steps with prompts", calibration.prompts)):
        lines += [f"  {what} of {tokens:5} tokens: {eff.bandwidth:4.0%} of the read rate, {eff.cache:4.0%} "
                  f"for the cache, {eff.prefill:4.0%} of the products' rate, {eff.launch_s * 1e6:.1f} us an "
                  f"operation, {seconds_text(eff.step_s)} a step"
                  for tokens, eff in zip(levels.tokens, levels.factors, strict=True)]
    if calibration.waking.share:
        lines.append(f"  a step after a pause: {calibration.waking.share:.0%} longer, at most "
                     f"{seconds_text(calibration.waking.most_s)}")
    lines.append(f"residual error of the {calibration.num_points} steps that were fitted: median "
                 f"{calibration.error:.1%}")
    if apart:
        lines.append(f"between the fastest and the slowest pass over a step lay {apart:.0%} (median)" + (
            ": other work ran beside it; measure again on an idle machine" if apart > _DISTURBED else ""))
    return "\n".join(lines)
