"""`ridgeline bench structured`: what following a JSON schema costs a step, and what jump-ahead gives back.

Two measurements, in pairs whose order changes from one to the next. Steps: rounds of requests with a schema
and without, in one engine that takes a step for each token, so that both decode alike; the time from one
step's end to the next one's, of steps in which all rows decode. Answers: seconds of whole answers with long
fixed keys in an engine that jumps ahead and in one that does not, one at a time and 16.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from statistics import median
from typing import Any

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.trace import RingTrace
from ridgeline.bench.drive import Driver, Prompts, Shape
from ridgeline.engine.build import build_engine
from ridgeline.engine.compiling import need_grammars
from ridgeline.engine.llm import LLM
from ridgeline.frontend.structure import json_schema
from ridgeline.spec.sampling import SamplingParams

PAIRS, ROWS, TOKENS = 10, 32, 64  # unless told
BATCHES = (1, 16)  # answers at a time
PROMPT_TOKENS = 32
_MAX_STEPS = 1 << 16
_ANY_ITEM: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {
    "id": {"type": "integer", "minimum": 0, "maximum": 9999}, "name": {"type": "string", "maxLength": 24},
    "kind": {"enum": ["tool", "part", "service"]}, "price": {"type": "integer", "minimum": 0, "maximum": 999},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    "in_stock": {"type": "boolean"}}, "required": ["id", "name", "kind", "price", "tags", "in_stock"]}
ENDLESS = {"type": "array", "items": _ANY_ITEM, "minItems": 200}  # no answer ends by itself
ORDER: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {
    "customer_identification_number": {"type": "integer", "minimum": 0, "maximum": 9999},
    "preferred_delivery_window": {"enum": ["morning", "afternoon", "evening"]},
    "is_returning_customer": {"type": "boolean"},
    "shipping_address_city_name": {"type": "string", "maxLength": 12},
    "order_confirmation_status": {"enum": ["confirmed_by_customer", "rejected_by_customer"]}}}
ORDER["required"] = list(ORDER["properties"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredArgs:
    """num_pairs of each measurement; rows that decode together and tokens of each, of the first; batches: of
    answers, of the second."""

    engine: EngineConfig
    num_pairs: int | None = None
    rows: int | None = None
    output_tokens: int | None = None
    batches: tuple[int, ...] = BATCHES
    json: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Medians over the pairs, seconds; ratio: the median of the pairs' own."""

    what: str
    num_pairs: int
    plain_s: float
    other_s: float
    ratio: float

    @classmethod
    def of(cls, what: str, plain_s: Sequence[float], other_s: Sequence[float]) -> "Compared":
        return cls(what=what, num_pairs=len(plain_s), plain_s=median(plain_s), other_s=median(other_s),
                   ratio=median(other / plain for plain, other in zip(plain_s, other_s, strict=True)))

    def text(self) -> str:
        return (f"{self.what}: {1e3 * self.plain_s:.2f} ms and {1e3 * self.other_s:.2f} ms, median ratio "
                f"{self.ratio:.3f} of {self.num_pairs} pairs")


def run(args: StructuredArgs, write: Callable[[str], object] = print) -> int:
    """Measure and write; the exit code. ConfigError for an engine that cannot."""
    pairs, rows = args.num_pairs or PAIRS, args.rows or ROWS
    engine = replace(args.engine, max_num_seqs=max(rows, *args.batches, args.engine.max_num_seqs))
    found = []
    for one in chain(_steps(replace(engine, jump_ahead=False), args, pairs, rows),
                     _answers(engine, args.batches, pairs)):
        found.append(asdict(one))
        if not args.json:
            write(one.text())
    if args.json:
        write(json.dumps(found))
    return 0


def _steps(config: EngineConfig, args: StructuredArgs, num_pairs: int, rows: int) -> Iterator[Compared]:
    trace = RingTrace(num_steps=_MAX_STEPS, num_requests=_MAX_STEPS)
    engine = build_engine(config, trace=trace)
    try:
        grammar = json_schema(ENDLESS)
        need_grammars(engine.grammars).compile(grammar)
        driver = Driver(engine.loop, trace, WallClock(), Prompts(engine.spec.vocab_size, args.seed))
        plain = Shape(num_requests=rows, concurrency=rows, prompt_tokens=PROMPT_TOKENS,
                      output_tokens=args.output_tokens or TOKENS)
        sides = plain, replace(plain, grammar=grammar)
        driver.run(sides[1])
        taken: tuple[list[float], list[float]] = [], []
        for number in range(num_pairs):
            for side in (number % 2, 1 - number % 2):
                taken[side].append(_step_s(driver, sides[side]))
    finally:
        engine.close()
    yield Compared.of(f"a step of {rows} rows, free and with a JSON schema", *taken)


def _step_s(driver: Driver, shape: Shape) -> float:
    steps = [s for s in driver.run(shape).steps if s.num_chunks == 0 and s.num_decodes == shape.concurrency]
    if len(steps) < 3:
        raise ConfigError(f"{shape.concurrency} rows never decode together: lower --concurrency, or give "
                          "more --output-tokens")
    return median(after.finished_s - before.finished_s for before, after in pairwise(steps))


def _answers(config: EngineConfig, batches: Sequence[int], num_pairs: int) -> Iterator[Compared]:
    params = SamplingParams(temperature=0.0, max_tokens=200, grammar=json_schema(ORDER))
    clock = WallClock()
    with LLM.from_config(replace(config, jump_ahead=False)) as slow, LLM.from_config(config) as fast:
        for batch in batches:
            taken: tuple[list[float], list[float]] = [], []
            for number in range(-1, num_pairs):  # the first warms up
                asked = [[{"role": "user", "content": f"Order {number + 1}.{i}: make up its record."}]
                         for i in range(batch)]
                for side in (number % 2, 1 - number % 2):
                    begun_s = clock.now()
                    (slow, fast)[side].chat(asked, params, progress=False)
                    if number >= 0:
                        taken[side].append(clock.now() - begun_s)
            yield Compared.of(f"{batch} answers at a time, step by step and jumping ahead", *taken)
