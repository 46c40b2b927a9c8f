"""`ridgeline bench latency | throughput | probe`: the engine in this process, beside the floor of its steps.

The floor is made of rates measured before and after in the same run, the better of the two. Rounds get fresh
prompts; a short round warms up before.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.trace import RingTrace
from ridgeline.bench.drive import Driver, Prompts, Round, Shape
from ridgeline.bench.report import Report, seconds_text, summarize
from ridgeline.bench.tables import step_table
from ridgeline.engine.build import Engine, build_engine
from ridgeline.engine.floors import step_key
from ridgeline.engine.probe import better, probe_gpu, probe_machine
from ridgeline.ledger.profile import MachineProfile, save_profile

WARM_UP_TOKENS = 8
_TOKENS = 128  # of a prompt and of an output, unless told
_LATENCY_REQUESTS = 5
_CONCURRENCY = 16
_MAX_STEPS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArgs:
    """what: "latency" (one request at a time), "throughput" (`concurrency` at a time) or "probe".

    The workload's numbers are None for the defaults: 128 tokens in and out; 5 requests for latency, 16 at a
    time and as many in all for throughput. json: one JSON object instead of text. profile: the name under
    which "probe" saves what it measured (a path when it ends in .json), None for this machine's own, which
    engines use. seed: of the prompts.
    """

    what: str
    engine: EngineConfig
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    concurrency: int | None = None
    num_requests: int | None = None
    json: bool = False
    profile: str | None = None
    seed: int = 0


def run(args: BenchArgs, write: Callable[[str], object] = print) -> int:
    """Run one benchmark and write its report; the exit code. ConfigError for what cannot be measured."""
    shape = _shape(args)
    trace = RingTrace(num_steps=_MAX_STEPS, num_requests=_MAX_STEPS)
    engine = build_engine(args.engine, trace=trace)
    try:
        driver = Driver(engine.loop, trace, WallClock(), Prompts(engine.spec.vocab_size, args.seed))
        write(_measure(args, engine, driver, shape) if shape else _probe(args, engine, driver))
    finally:
        engine.close()
    return 0


def _shape(args: BenchArgs) -> Shape | None:
    """The workload, None for "probe". ConfigError for a flag that the benchmark has no use for."""
    if args.what not in ("latency", "throughput", "probe"):
        raise ConfigError(f"no benchmark named {args.what!r}: latency, throughput and probe are known")
    workload = {"--prompt-tokens": args.prompt_tokens, "--output-tokens": args.output_tokens,
                "--concurrency": args.concurrency, "--num-requests": args.num_requests}
    useless = {"latency": ["--concurrency"], "throughput": [], "probe": list(workload)}[args.what]
    given = [flag for flag in useless if workload[flag] is not None]
    if given:
        raise ConfigError(f"bench {args.what} has no use for {' and '.join(given)}: leave it out")
    if args.what == "probe":
        return None
    if args.profile is not None:
        raise ConfigError(f"bench {args.what} saves no profile: leave out --profile, or run bench probe")
    concurrency = 1 if args.what == "latency" else args.concurrency or _CONCURRENCY
    requests = args.num_requests or (_LATENCY_REQUESTS if args.what == "latency" else concurrency)
    if concurrency > args.engine.max_num_seqs:
        raise ConfigError(f"{concurrency} requests at a time need --max-num-seqs {concurrency} or more: "
                          f"it is {args.engine.max_num_seqs}")
    if args.output_tokens == 1:
        raise ConfigError("a benchmark needs --output-tokens 2 or more: the first token is prefill's")
    return Shape(num_requests=requests, concurrency=min(concurrency, requests),
                 prompt_tokens=args.prompt_tokens or _TOKENS, output_tokens=args.output_tokens or _TOKENS)


def _measure(args: BenchArgs, engine: Engine, driver: Driver, shape: Shape) -> str:
    before = _rates(engine, "this run")
    driver.run(Shape(num_requests=shape.concurrency, concurrency=shape.concurrency,
                     prompt_tokens=shape.prompt_tokens, output_tokens=WARM_UP_TOKENS))
    done = driver.run(shape)
    machine = better(before, _rates(engine, "this run"))
    report = _report(args.what, engine, machine, shape, done)
    return json.dumps(report.as_json(), allow_nan=False) if args.json else report.text()


def _rates(engine: Engine, name: str) -> MachineProfile:
    """What the engine's device does now."""
    if engine.device.type == "cuda":
        return probe_gpu(name, engine.device)
    return probe_machine(name, engine.info["profile"]["decode_read_bytes"])


def _report(what: str, engine: Engine, machine: MachineProfile, shape: Shape, done: Round) -> Report:
    price = engine.price(machine)
    decodes = [s for s in done.steps if s.num_chunks == 0 and s.num_decodes == shape.concurrency]
    chunks = [s for s in done.steps if s.num_decodes == 0]
    return Report(what=what, model=engine.name, numerics=engine.numerics, concurrency=shape.concurrency,
                  prompt_tokens=shape.prompt_tokens, output_tokens=shape.output_tokens, wall_s=done.wall_s,
                  requests=done.requests, decode=summarize(decodes, price), prefill=summarize(chunks, price),
                  machine=machine)


def _probe(args: BenchArgs, engine: Engine, driver: Driver) -> str:
    """Measure and save; the machine's own profile keeps the tables of other models."""
    own = engine.profile
    machine = _rates(engine, args.profile or own.name)
    capacity = engine.capacity
    longest = min(capacity.max_step_tokens, capacity.max_model_len - 1)
    table = step_table(driver, max_rows=capacity.num_rows, max_chunk=longest)
    others = own.tables if machine.name == own.name else {}
    key = step_key(engine.spec, engine.numerics, engine.price(machine))
    profile = replace(machine, tables=others).with_table(key, table)
    path = save_profile(profile)
    if args.json:
        return path.read_text(encoding="utf-8").strip()
    times = [*zip(table.rows, table.row_s, strict=True), *zip(table.chunk, table.chunk_s, strict=True)]
    kinds = ["decodes"] * len(table.rows) + ["tokens of a chunk"] * len(table.chunk)
    lines = [f"{n:5} {kind}: {seconds_text(spent)}" for (n, spent), kind in zip(times, kinds, strict=True)]
    used = f", which engines with {own.threads} compute threads use here" if profile.name == own.name else ""
    return "\n".join([profile.text(), *lines, f"saved as {path}{used}"])
