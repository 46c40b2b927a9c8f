"""`ridgeline bench serve`: load on any OpenAI server, and two results side by side."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.base.errors import ConfigError
from ridgeline.commands.flags import count, positive, refuse, seconds, share
from ridgeline.workload.ask import WorkloadAsk

if TYPE_CHECKING:
    from ridgeline.bench.serve.ask import ServeAsk

HELP = "a server under load, as its clients see it; any OpenAI server"
_RANDOM = "1024,128"  # tokens of `random` unless told, as vLLM has them
_DURATION_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    server.add_argument("--url", help="such as http://localhost:8000")
    server.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    server.add_argument("--api-key", metavar="KEY", help="default: $RIDGELINE_API_KEY")
    server.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    server.add_argument("--no-ignore-eos", dest="ignore_eos", action="store_false",
                        help="answers may end by themselves: for servers that do not know ignore_eos")
    server.add_argument("--timeout", type=seconds, default=600.0, metavar="S", help="of a request (600)")
    _add_load(parser.add_argument_group("load"))
    output = parser.add_argument_group("output")
    output.add_argument("--goodput", type=_goal, nargs="+", action="extend", default=[], metavar="ttft:MS",
                        help="targets in milliseconds of ttft, tpot and e2el; requests that meet all count")
    output.add_argument("--max-failed", type=share, default=0.1, metavar="SHARE",
                        help="exit code 1 where a larger share of requests failed, clients that lost their "
                        "--patience apart, or none was answered (0.1)")
    output.add_argument("--percentiles", type=_points, default="50,90,95,99,99.9", metavar="P,P,...",
                        help="of every latency (50,90,95,99,99.9)")
    output.add_argument("--save", type=Path, metavar="FILE.json",
                        help="the numbers, named as `vllm bench serve` names them")
    output.add_argument("--html", type=Path, metavar="FILE", help="a page with figures, readable offline")
    output.add_argument("--json", action="store_true", help="one JSON object instead of text")
    output.add_argument("--no-progress", dest="progress", action="store_false", help="no line while it runs")
    output.add_argument("--compare", type=Path, nargs=2, metavar="FILE.json",
                        help="measure nothing: two saved results under the same load, side by side")


def _add_load(load: argparse._ActionsContainer) -> None:
    load.add_argument("--dataset", default="sharegpt", metavar="NAME",
                      help="sharegpt, azure-conv, azure-code, arxiv, random[:PROMPT,OUTPUT], lognormal:..., "
                      "uniform:..., prefix:SHARED,OWN,OUTPUT,GROUPS, or trace:FILE (sharegpt)")
    load.add_argument("--rate", type=seconds, metavar="N", help="requests a second")
    load.add_argument("--arrival", default="poisson", metavar="NAME",
                      help="poisson, gamma:SHAPE, closed:N, or trace: the trace's own times (poisson)")
    load.add_argument("--rate-scale", type=seconds, default=1.0, metavar="X",
                      help="a trace's own times pressed together X times")
    load.add_argument("--length-scale", type=seconds, default=1.0, metavar="X",
                      help="prompts and answers X times as long")
    load.add_argument("--num-prompts", type=count, metavar="N", help="requests in all")
    load.add_argument("--duration", type=seconds, metavar="S", help="of sending (60 without --num-prompts)")
    load.add_argument("--max-concurrency", type=count, metavar="N",
                      help="requests under way at a time; the others wait, and their waiting counts")
    load.add_argument("--patience", type=seconds, metavar="S",
                      help="a client goes away so long after its request was to be sent")
    load.add_argument("--warmup", type=int, default=2, metavar="N", help="requests before, not counted (2)")
    load.add_argument("--seed", type=int, default=0, help="of lengths, arrivals and texts (0)")


def run(args: argparse.Namespace) -> int:
    if args.compare is not None:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        others = vars(parser.parse_args([])).keys() - {"compare", "progress"}
        refuse(args, parser, "--compare, which measures nothing,", sorted(others))
        from ridgeline.bench.serve.compare import compare

        print(compare(tuple(args.compare)))
        return 0
    from ridgeline.bench.serve.run import run as run_serve

    return run_serve(_ask(args))


def _ask(args: argparse.Namespace) -> "ServeAsk":
    from ridgeline.base.config import api_keys
    from ridgeline.bench.serve.ask import ServeAsk

    if args.url is None:
        raise ConfigError("bench serve needs --url, as in http://localhost:8000, or --compare A.json B.json")
    if args.warmup < 0:
        raise ConfigError(f"--warmup {args.warmup}: it is a number of requests, from 0 up")
    return ServeAsk(
        url=args.url, workload=_workload(args), model=args.model, endpoint=args.endpoint,
        api_key=args.api_key or next(iter(api_keys()), None), goodput=dict(args.goodput),
        max_concurrency=args.max_concurrency, timeout_s=args.timeout, num_warmups=args.warmup,
        percentiles=args.percentiles, ignore_eos=args.ignore_eos, save=args.save, html=args.html,
        max_failed=args.max_failed, json=args.json, progress=args.progress)


def _workload(args: argparse.Namespace) -> WorkloadAsk:
    kind, _, setting = args.dataset.partition(":")
    trace = setting if kind == "trace" else None
    lengths = f"fixed:{setting or _RANDOM}" if kind == "random" else args.dataset
    duration_s = args.duration
    if duration_s is None and args.num_prompts is None and trace is None:
        duration_s = _DURATION_S
    return WorkloadAsk(
        trace=trace, lengths=None if trace else lengths, arrival=args.arrival, rate=args.rate,
        rate_scale=args.rate_scale, num_requests=args.num_prompts, duration_s=duration_s,
        length_scale=args.length_scale, patience_s=args.patience, seed=args.seed)


def _goal(text: str) -> tuple[str, float]:
    """"ttft:500" as a name and seconds."""
    name, _, most_ms = text.partition(":")
    if name not in ("ttft", "tpot", "e2el"):
        raise argparse.ArgumentTypeError(f"{text}: write it like ttft:500; ttft, tpot and e2el are known")
    return name, positive(float)(most_ms) / 1e3


def _points(text: str) -> tuple[float, ...]:
    try:
        points = tuple(float(word) for word in text.split(","))
    except ValueError:
        points = (-1.0,)
    if not all(0 <= point <= 100 for point in points):
        raise argparse.ArgumentTypeError(f"{text}: write percentiles from 0 to 100, like 50,99,99.9")
    return points
