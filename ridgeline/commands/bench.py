"""`ridgeline bench latency | throughput | probe | speculate | structured | kernels | startup | steps |
simulated | serve`."""

import argparse
from dataclasses import fields, replace

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.commands import bench_serve
from ridgeline.commands.flags import add_engine_flags, count, engine_config

_ROOM = 2048  # tokens of a row beyond the longest context: rows that wait for others go on
_WORKLOAD = ("prompt-tokens", "output-tokens", "concurrency", "num-requests")
HELP = "measure the engine in this process beside the floor of what it did, or a server under load"
_HERE = {
    "latency": "one request at a time",
    "throughput": "many requests at a time",
    "probe": "the machine itself",
    "speculate": "requests with drafts beside requests without",
    "structured": "steps with a JSON schema beside steps without, and jump-ahead beside none",
    "kernels": "a published shape's GPU kernels",
    "startup": "the way to the first token",
    "steps": "decode steps beside a calibrated profile",
    "simulated": "requests beside the simulator on a calibrated profile",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(dest="what", metavar="BENCHMARK", required=True)
    for name, words in _HERE.items():
        _add_flags(benchmarks.add_parser(name, help=words, description=words, allow_abbrev=False))
    words = bench_serve.HELP
    bench_serve.add_arguments(
        benchmarks.add_parser("serve", help=words, description=words, allow_abbrev=False)
    )


def _add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    group.add_argument("--prompt-tokens", type=count, metavar="TOKENS", help="of a request (128)")
    group.add_argument("--output-tokens", type=count, metavar="TOKENS", help="of a request (128)")
    group.add_argument("--concurrency", type=count, metavar="N", help="requests at a time (16; 32)")
    group.add_argument("--num-requests", type=count, metavar="N",
                       help="in all (latency: 5, throughput: 16), or pairs of a workload (10)")
    group.add_argument("--batch", type=count, nargs="+", metavar="N", help="steps: rows of each (1 8 32 128)")
    group.add_argument("--context", type=count, nargs="+", metavar="TOKENS",
                       help="steps: tokens behind each row (1024 8192)")
    group.add_argument("--json", action="store_true", help="one JSON object instead of text")
    group.add_argument(
        "--profile",
        metavar="NAME",
        help="of what probe saves (default: this machine's own, which its engines use), or of what steps "
        "compares with",
    )
    group.add_argument(
        "--tune",
        action="store_true",
        help="kernels: first measure every candidate of the shape's linears and keep the best for this GPU",
    )
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.what == "serve":
        return bench_serve.run(args)
    if args.what == "steps":
        return _run_steps(args)
    if args.what == "simulated":
        return _run_simulated(args)
    if args.batch or args.context:
        raise ConfigError(f"bench {args.what} has no use for --batch and --context: they are of bench steps")
    if args.what == "kernels":
        return _run_kernels(args)
    if args.what == "startup":
        return _run_startup(args)
    if args.tune:
        raise ConfigError(f"bench {args.what} has no use for --tune: it is of bench kernels")
    if args.what == "speculate":
        return _run_speculate(args)
    if args.what == "structured":
        return _run_structured(args)
    from ridgeline.bench.offline import BenchArgs
    from ridgeline.bench.offline import run as run_bench

    return run_bench(
        BenchArgs(
            what=args.what,
            engine=engine_config(args),
            prompt_tokens=args.prompt_tokens,
            output_tokens=args.output_tokens,
            concurrency=args.concurrency,
            num_requests=args.num_requests,
            json=args.json,
            profile=args.profile,
            seed=args.seed,
        )
    )


def _run_steps(args: argparse.Namespace) -> int:
    given = [f"--{name}" for name in (*_WORKLOAD, "tune")
             if getattr(args, name.replace("-", "_")) not in (None, False)]
    if given:
        raise ConfigError(f"bench steps has no use for {' and '.join(given)}: it takes --batch and --context")
    if args.profile is None:
        raise ConfigError("bench steps needs --profile NAME, of what `ridgeline calibrate` wrote")
    from ridgeline.bench.steps import BATCHES, CONTEXTS, StepArgs
    from ridgeline.bench.steps import run as run_steps

    batches, contexts = args.batch or BATCHES, args.context or CONTEXTS
    engine = engine_config(args)
    engine = replace(engine, max_num_seqs=max(*batches, engine.max_num_seqs), prefix_caching=False,
                     max_model_len=engine.max_model_len or max(contexts) + _ROOM)
    return run_steps(StepArgs(engine=engine, profile=args.profile, batches=batches,
                              contexts=contexts, json=args.json, seed=args.seed))


def _run_simulated(args: argparse.Namespace) -> int:
    given = [f"--{name}" for name in (*_WORKLOAD[:3], "batch", "context", "tune")
             if getattr(args, name.replace("-", "_")) not in (None, False)]
    if given:
        raise ConfigError(f"bench simulated has no use for {' and '.join(given)}: it takes --num-requests")
    if args.profile is None:
        raise ConfigError("bench simulated needs --profile NAME, of what `ridgeline calibrate` wrote")
    from ridgeline.bench.simulated import SimulatedArgs
    from ridgeline.bench.simulated import run as run_simulated

    return run_simulated(SimulatedArgs(
        engine=replace(engine_config(args), prefix_caching=False), profile=args.profile, seed=args.seed,
        num_requests=args.num_requests or 200, json=args.json))


def _run_startup(args: argparse.Namespace) -> int:
    given = [f"--{name}" for name in (*_WORKLOAD, "profile", "tune")
             if getattr(args, name.replace("-", "_")) not in (None, False)]
    if given:
        raise ConfigError(f"bench startup has no use for {' and '.join(given)}: it takes the engine's flags "
                          "and --json")
    from ridgeline.bench.startup import run as run_startup

    return run_startup(engine_config(args), as_json=args.json)


def _run_speculate(args: argparse.Namespace) -> int:
    given = [f"--{name}" for name in ("prompt-tokens", "concurrency", "profile")
             if getattr(args, name.replace("-", "_")) is not None]
    if given:
        raise ConfigError(f"bench speculate has no use for {' and '.join(given)}: leave it out")
    from ridgeline.bench.speculate import SpeculateArgs
    from ridgeline.bench.speculate import run as run_speculate

    return run_speculate(SpeculateArgs(engine=engine_config(args), num_pairs=args.num_requests,
                                       output_tokens=args.output_tokens, json=args.json))


def _run_structured(args: argparse.Namespace) -> int:
    given = [f"--{name}" for name in ("prompt-tokens", "profile")
             if getattr(args, name.replace("-", "_")) is not None]
    if given:
        raise ConfigError(f"bench structured has no use for {' and '.join(given)}: leave it out")
    from ridgeline.bench.structured import StructuredArgs
    from ridgeline.bench.structured import run as run_structured

    return run_structured(StructuredArgs(
        engine=engine_config(args), num_pairs=args.num_requests, rows=args.concurrency,
        output_tokens=args.output_tokens, json=args.json, seed=args.seed))


def _run_kernels(args: argparse.Namespace) -> int:
    default, used = EngineConfig(), ("model", "load_format")
    given = [f"--{name}" for name in ("output-tokens", "concurrency", "num-requests", "profile")
             if getattr(args, name.replace("-", "_")) is not None]
    given += [f"--{'no-' if getattr(default, f.name) is True else ''}{f.name}".replace("_", "-")
              for f in fields(EngineConfig)
              if f.name not in used and getattr(args, f.name) not in (getattr(default, f.name), [])]
    if given:
        raise ConfigError(f"bench kernels has no use for {' and '.join(given)}: it takes a published shape, "
                          "--prompt-tokens, --tune and --json")
    from ridgeline.bench.kernels import KernelArgs
    from ridgeline.bench.kernels import run as run_kernels

    return run_kernels(KernelArgs(shape=args.model, context=args.prompt_tokens, json=args.json,
                                  tune=args.tune))
