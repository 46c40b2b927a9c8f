"""`ridgeline bench latency | throughput | probe`."""

import argparse

from ridgeline.commands.flags import add_engine_flags, count, engine_config

HELP = "measure the engine in this process beside the floor of what it did"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=("latency", "throughput", "probe"),
        help="one request at a time, many at a time, or the machine itself",
    )
    group = parser.add_argument_group("workload")
    group.add_argument("--prompt-tokens", type=count, metavar="TOKENS", help="of a request (128)")
    group.add_argument("--output-tokens", type=count, metavar="TOKENS", help="of a request (128)")
    group.add_argument("--concurrency", type=count, metavar="N", help="requests at a time (16)")
    group.add_argument("--num-requests", type=count, metavar="N", help="in all (latency: 5, throughput: 16)")
    group.add_argument("--json", action="store_true", help="one JSON object instead of text")
    group.add_argument(
        "--profile",
        metavar="NAME",
        help="of what probe saves; default: this machine's own, which its engines use",
    )
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
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
