"""`ridgeline bench steps`: decode steps of a live engine at given batches and contexts, beside what a
calibrated profile says that they take. The same measurement feeds `ridgeline calibrate`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.trace import RingTrace, StepRecord
from ridgeline.bench.drive import Driver, Prompts, Shape
from ridgeline.bench.report import seconds_text
from ridgeline.engine.build import Engine, build_engine
from ridgeline.ledger.profile import MachineProfile, load_profile
from ridgeline.ledger.sums import Rows
from ridgeline.ledger.work import step_s

STEPS = 24  # of which the median counts
_BESIDE = 5  # tokens that decodes beside prompts answer for each of these, and around them
_MAX_RECORDS = 1 << 16
BATCHES, CONTEXTS = (1, 8, 32, 128), (1024, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArgs:
    """batches: rows of the steps; contexts: tokens behind each row. profile: name or path of a calibrated
    profile."""

    engine: EngineConfig
    profile: str
    batches: Sequence[int] = BATCHES
    contexts: Sequence[int] = CONTEXTS
    json: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The median step of `rows` decodes with `context` keys behind each, the new token included."""

    rows: int
    context: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A measured step and its estimate. asked: the context that was asked for, of which the cache may hold
    only a part."""

    rows: int
    asked: int
    context: int
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


class Stepper:
    """Measures one engine's steps. Owns the engine until `close`."""

    def __init__(self, config: EngineConfig, seed: int = 0) -> None:
        trace = RingTrace(num_steps=_MAX_RECORDS, num_requests=_MAX_RECORDS)
        self.engine: Engine = build_engine(config, trace=trace)
        prompts = Prompts(self.engine.spec.vocab_size, seed)
        self._driver = Driver(self.engine.loop, trace, WallClock(), prompts)

    def close(self) -> None:
        self.engine.close()

    def longest(self, rows: int) -> int:
        """The most tokens that each of so many rows can have in the cache at once."""
        capacity = self.engine.capacity
        low, high = 0, capacity.max_model_len - 1
        while low < high:
            middle = (low + high + 1) // 2
            fits = capacity.layout.pages_for(middle) * rows < capacity.num_pages
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def decode(self, rows: int, context: int, num: int = STEPS) -> Measured:
        """The median of num steps. ConfigError when so many rows never decode together. Rows whose prompts
        come first decode while the others' are computed: answers are as much longer."""
        budget = self.engine.capacity.max_step_tokens
        output = min(num + 2 + -(-rows * context // max(budget - rows, 1)), self.longest(rows) // 2)
        prompt = max(min(context + num // 2, self.longest(rows)) - output, 1)
        done = self._driver.run(Shape(num_requests=rows, concurrency=rows, prompt_tokens=prompt,
                                      output_tokens=output, again=True))
        steps = [s for s in done.steps if s.num_chunks == 0 and s.num_decodes == rows][-num:]
        if len(steps) < 3:
            raise ConfigError(f"{rows} rows of {context} tokens never decode together: lower --batch or "
                              "--context")
        return Measured(rows=rows, seconds=_between_s(steps),
                        context=round(median(s.context_tokens for s in steps) / rows))

    def prompt(self, tokens: int, rows: int = 0, context: int = 0, num: int = 3) -> Measured:
        """The median step of num prompts of so many tokens, one after another, beside so many decodes with
        so much behind them; context: 0 without any. ConfigError when none came beside them."""
        asked = Shape(num_requests=num, concurrency=1, prompt_tokens=tokens, output_tokens=1)
        beside = Shape(num_requests=rows, concurrency=rows, prompt_tokens=context, again=True,
                       output_tokens=_BESIDE * (num + 1))
        done = self._driver.run(asked, beside if rows else None)
        steps = [s for s in done.steps if s.num_decodes == rows and s.prefill_tokens == tokens]
        if not steps:
            raise ConfigError(f"no prompt of {tokens} tokens came beside {rows} decodes")
        return Measured(rows=rows, seconds=median(s.measured_s for s in steps),
                        context=round(median(s.context_tokens - tokens for s in steps) / max(rows, 1)))


def _between_s(steps: Sequence[StepRecord]) -> float:
    """The median time from one step's end to the next one's: what a token takes, the host's part included."""
    return median(after.finished_s - before.finished_s for before, after in pairwise(steps))


def compare(stepper: Stepper, profile: MachineProfile, batches: Sequence[int],
            contexts: Sequence[int]) -> list[Compared]:
    """Every batch at every context. ConfigError for a profile without a calibration."""
    calibration = profile.calibration
    if calibration is None:
        raise ConfigError(f"profile {profile.name} has no calibration: make one with `ridgeline calibrate "
                          f"--profile {profile.name}`")
    work = stepper.engine.work(profile)
    found = []
    for rows in batches:
        for asked in contexts:
            one = stepper.decode(rows, asked)
            step = work([Rows(rows=rows, start=one.context - 1, count=1)])
            found.append(Compared(rows=rows, asked=asked, context=one.context, measured_s=one.seconds,
                                  predicted_s=float(step_s(step, calibration.decodes.at(rows)))))
    return found


def _text(one: Compared) -> str:
    short = "" if one.context > 0.95 * one.asked else f"; the cache does not hold {one.asked}"
    return (f"{one.rows:5} rows, {one.context:6} tokens each: measured {seconds_text(one.measured_s)}, "
            f"predicted {seconds_text(one.predicted_s)} ({one.error:+.1%}){short}")


def run(args: StepArgs, write: Callable[[str], object] = print) -> int:
    """Measure, compare, write; the exit code."""
    profile = load_profile(args.profile)
    stepper = Stepper(args.engine, args.seed)
    try:
        found = compare(stepper, profile, args.batches, args.contexts)
        name = stepper.engine.name
    finally:
        stepper.close()
    error = median(abs(one.error) for one in found)
    if args.json:
        write(json.dumps({"bench": "steps", "model": name, "profile": profile.name, "median_error": error,
                          "steps": [asdict(one) | {"error": one.error} for one in found]}))
        return 0
    lines = [f"decode steps of {name} beside profile {profile.name}", *map(_text, found)]
    write("\n".join([*lines, f"median error {error:.1%}"]))
    return 0
