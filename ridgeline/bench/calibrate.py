"""`ridgeline calibrate`: measures this machine and the steps of engines on it, fits what they reach of their
floors and writes a profile that plans and benchmarks use when it is named.

The steps are of models with random weights (of the default model where a processor multiplies packed
weights), at a few batches and contexts each: what is judged later is another model, or another batch at
another context.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.bench.report import seconds_text
from ridgeline.bench.steps import Stepper
from ridgeline.engine.floors import profile_name
from ridgeline.engine.machine import num_cores
from ridgeline.engine.measure import measure_machine
from ridgeline.engine.probe import probe_gpu, probe_machine
from ridgeline.ledger.calibrate import Point, calibrate_steps
from ridgeline.ledger.efficiency import Calibration
from ridgeline.ledger.profile import MachineProfile, save_profile
from ridgeline.ledger.sums import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a kind of device is measured with. models: (name, load format). rows: of decode steps. contexts:
    behind each row, the second at most so long that `tokens` are in the cache. chunks: prompts of one step;
    beside: rows that decode in a second step with each. cache_bytes: of each engine, None for its own
    choice."""

    models: Sequence[tuple[str | None, str]]
    rows: Sequence[int]
    contexts: tuple[int, int]
    tokens: int
    chunks: Sequence[int]
    beside: int = 0
    cache_bytes: int | None = None


# One large model and one small one: bytes and launches weigh differently in their steps.
GPU = Course(models=(("mistral-7b", "dummy"), ("qwen3-0.6b", "dummy")), rows=(1, 8, 16, 32, 64, 128),
             contexts=(512, 6144), tokens=200_000, chunks=(512, 2048), cache_bytes=40_000_000_000)
CPU = Course(models=((None, "auto"),), rows=(1, 2, 3, 4, 6, 8, 12, 16, 24), contexts=(48, 400), tokens=3200,
             chunks=(32, 64, 128, 256, 512), beside=6)


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
    course = GPU if on_gpu else CPU
    steps = course_steps(course, profile, device.type, args.threads)
    profile = replace(profile, calibration=calibrate_steps(steps, measured))
    assert profile.calibration is not None
    write(report(profile.calibration))
    path, seconds = save_profile(profile), time.perf_counter() - begun
    write(f"saved as {path} after {seconds:.0f} s: name it with --profile")
    return 0


def course_steps(course: Course, profile: MachineProfile, device: str,
                 threads: int | None = None) -> Mapping[int, list[Point]]:
    """Measured steps by their number of tokens, each with its work at the profile's rates."""
    found: dict[int, list[Point]] = {}
    for model, load_format in course.models:
        stepper = Stepper(EngineConfig(
            model=model, load_format=load_format, device=device, threads=threads, progress=False,
            max_num_seqs=max(course.rows), prefix_caching=False, kv_cache_bytes=course.cache_bytes,
            max_num_batched_tokens=max(course.chunks) + course.beside if course.beside else None,
            max_model_len=2 * max(course.contexts)))
        try:
            work = stepper.engine.work(profile)
            for rows in course.rows:
                for context in (course.contexts[0], min(course.contexts[1], course.tokens // rows)):
                    one = stepper.decode(rows, context)
                    step = work([Rows(rows=rows, start=one.context - 1, count=1)])
                    found.setdefault(rows, []).append(
                        Point.of_step(step, one.seconds, about=stepper.engine.name))
            for tokens in course.chunks:
                step = work([Rows(rows=1, start=0, count=tokens)])
                found.setdefault(tokens, []).append(
                    Point.of_step(step, stepper.chunk(tokens), about=stepper.engine.name))
                if course.beside:
                    one = stepper.mixed(course.beside, course.contexts[0], tokens)
                    step = work([Rows(rows=one.rows, start=one.context - 1, count=1),
                                 Rows(rows=1, start=0, count=tokens)])
                    found.setdefault(tokens, []).append(
                        Point.of_step(step, one.seconds, about=stepper.engine.name))
        finally:
            stepper.close()
            del stepper
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    return found


def report(calibration: Calibration) -> str:
    """The figures and the factors by tokens of a step."""
    lines = [f"  {name}: {value:.3g}" for name, value in calibration.measured.items()]
    lines += [f"  steps of {tokens:5} tokens: {eff.bandwidth:4.0%} of the read rate, {eff.cache:4.0%} for "
              f"the cache, {eff.prefill:4.0%} of the products' rate, {eff.launch_s * 1e6:.1f} us an operation"
              f", {seconds_text(eff.step_s)} a step"
              for tokens, eff in zip(calibration.tokens, calibration.factors, strict=True)]
    lines.append(f"residual error of the {calibration.num_points} steps that were fitted: median "
                 f"{calibration.error:.1%}")
    return "\n".join(lines)
