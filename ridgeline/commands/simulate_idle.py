"""Which flags of `simulate` would change nothing beside the others: refused, since what is taken has an
effect."""

import argparse
from collections.abc import Iterator

from ridgeline.commands.flags import refuse

_DEPLOYMENT = ("gpu", "tp", "pp", "ep", "weights", "kv_cache_dtype", "memory_bytes", "price_usd_per_hour",
               "profile", "reading")
_SETTLED = ("max_num_seqs", "kv", "host_kv_bytes", "prefix_caching", "trace", "rate", "arrival", "rate_scale",
            "length_scale", "patience_s", "duration_s", "replicas", "prefill", "decode", "html", "router",
            "link_bytes_per_s", "attainment")  # by an example or a record itself
_SERVED = ("policy", "compare", "lengths", "num_requests", "ttft_s", "tpot_s", "seed")


def refuse_idle(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """ConfigError for the first flag that was given and has no effect."""
    for what, names in _idle(args):
        refuse(args, parser, what, names)


def _idle(args: argparse.Namespace) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is asked for, and the flags without effect beside it."""
    if args.replay is not None:
        yield "--replay", (*_SETTLED, *_SERVED, "price_usd_per_hour")
        if not args.words:
            yield "--replay without a MODEL", (*_DEPLOYMENT, "max_num_batched_tokens")
    elif args.example == "eight-requests":
        yield "--example eight-requests", (*_SETTLED, "max_num_batched_tokens", "lengths", "num_requests",
                                           "seed")
    elif args.example == "uniform":
        yield "--example uniform", (*_SETTLED, "max_num_batched_tokens", "policy", "compare", "ttft_s",
                                    "tpot_s")
    elif args.words[:1] == ["capacity"]:
        yield "capacity", ("html", "rate_scale")
    else:
        yield "simulate, but for `simulate capacity`,", ("attainment",)
    if args.arrival.startswith("closed:"):
        yield f"--arrival {args.arrival}", ("duration_s", "patience_s")
    if args.prefill is None and args.decode is None:
        yield "a run without --prefill and --decode", ("link_bytes_per_s",)
        if args.replicas == 1:
            yield "a single engine", ("router",)
