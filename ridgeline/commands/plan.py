"""`ridgeline plan MODEL`: what a model on a device would do, before anything loads."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from ridgeline.base.errors import ConfigError
from ridgeline.base.units import parse_bytes
from ridgeline.commands.flags import count, positive, seconds, size
from ridgeline.planner.ask import CACHES, WEIGHTS, Ask, parse_link, parse_seconds, parse_speculate

HELP = "say whether a model fits, how fast it answers and what binds, before anything loads"


def _read(reader: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return reader(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return read


def _override(text: str) -> tuple[str, object]:
    name, found, value = text.partition("=")
    if not (name and found):
        raise argparse.ArgumentTypeError(f"{text!r} is no FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="MODEL", help="a model as people write it (llama-3-8b)")
    where = parser.add_argument_group("deployment")
    where.add_argument("--gpu", metavar="NAME", help="a device as people write it (h100, a100-80gb, l40s)")
    where.add_argument("--gpus", type=count, metavar="N",
                       help="devices in all; what no degree takes becomes replicas")
    for name, what in (("tp", "tensor"), ("pp", "pipeline"), ("ep", "expert"), ("dp", "replica")):
        where.add_argument(f"--{name}", type=count, metavar="N", help=f"degree of {what} parallelism")
    where.add_argument("--weights", choices=WEIGHTS,
                       help="format of the blocks' matrices (as the model stores them)")
    where.add_argument("--weight-only", action="store_true",
                       help="unpack weights before 16-bit products, although the device could multiply them")
    where.add_argument("--kv", choices=CACHES, default="bf16", help="format of the KV cache (bf16)")
    where.add_argument("--memory", type=size, metavar="BYTES", dest="memory_bytes",
                       help="of a device, 80GB or 74.5GiB; default: as marketed")
    where.add_argument("--workspace", type=_read(parse_bytes), metavar="BYTES", dest="workspace_bytes",
                       help="memory beside weights and cache (2GB)")
    where.add_argument("--price", type=positive(float), metavar="USD", dest="price_usd_per_hour",
                       help="of one device an hour; default: the device's own")
    where.add_argument("--set", action="append", type=_override, default=[], metavar="FIELD=VALUE",
                       dest="overrides", help="change a field of the model's config: an untrained shape")
    _add_workload(parser.add_argument_group("workload"))
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def _add_workload(group: argparse._ActionsContainer) -> None:
    group.add_argument("--prompt", type=count, default=2048, metavar="TOKENS", help="of a request (2048)")
    group.add_argument("--output", type=count, default=256, metavar="TOKENS", help="of a request (256)")
    group.add_argument("--batch", type=count, metavar="N",
                       help="sequences decoded together, over all devices (1)")
    group.add_argument("--rate", type=seconds, metavar="N", help="requests a second, instead of a batch")
    group.add_argument("--concurrency", type=count, metavar="N",
                       help="requests in flight, instead of a batch")
    for name in ("ttft", "tpot"):
        group.add_argument(f"--{name}", type=_read(parse_seconds), metavar="TIME", dest=f"{name}_s",
                           help="target, such as 500ms; judged by the estimate")
    group.add_argument("--shared-prefix", type=count, default=0, metavar="TOKENS",
                       help="that begin every prompt: stored and computed once, read by every sequence")
    group.add_argument("--read-prefix-once", action="store_true",
                       help="the shared prefix is read once a step for all, by a kernel made for it")
    group.add_argument("--prefix-hit", type=float, default=0.0, metavar="R",
                       help="share of a prompt found in the cache")
    group.add_argument("--prompt-logprobs", action="store_true", help="project every position of a prompt")
    group.add_argument("--speculate", type=_read(parse_speculate), metavar="gamma=4,alpha=.8,draft=.05",
                       help="drafts a step, their chance of acceptance, and the cost of one in steps")
    group.add_argument("--disaggregate", action="store_true",
                       help="prompts run on devices of their own, and their cache is sent over")
    group.add_argument("--link", type=_read(parse_link), metavar="BYTES/S", dest="link_bytes_per_s",
                       help="between the two, 50GB/s or 400Gb/s; default: the device's network")
    group.add_argument("--skew", type=float, default=0.0, metavar="S",
                       help="the i-th best liked expert is chosen like i^-S; 0: each as likely (0)")


def ask_of(args: argparse.Namespace, model: str) -> Ask:
    """The parsed flags as an ask."""
    from dataclasses import fields

    if args.gpu is None:
        raise ConfigError("--gpu is missing: name a device, such as h100")
    given = {f.name: getattr(args, f.name) for f in fields(Ask) if f.name not in ("model", "overrides")}
    return Ask(model=model, overrides=dict(args.overrides), **given)


def run(args: argparse.Namespace) -> int:
    from ridgeline.planner.plan import plan
    from ridgeline.planner.report import as_json, as_text

    if len(args.words) > 1:
        raise ConfigError(f"one model at a time, not {len(args.words)}: {' '.join(args.words)}")
    found = plan(ask_of(args, args.words[0]))
    print(json.dumps(as_json(found), indent=1, allow_nan=False) if args.json else as_text(found))
    return 0
