"""`ridgeline verify`: the self-test of a model on this machine, as a table."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from ridgeline.commands.flags import OF_SERVERS, add_engine_flags, engine_config, refuse

if TYPE_CHECKING:
    from ridgeline.engine.alike import Finding

HELP = "test a model on this machine: cached, batched, chunked, speculated and quantized against plain"

# What verify settles itself: it schedules each way of its own, plain text and the base model alone.
_SETTLED = ("policy", "ttft_s", "tpot_s", "prefix_caching", "cache", "kv_watermark_bytes", "trace_file",
            "trace_texts", "tokenizer", "chat_template", *OF_SERVERS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when anything differs that must not."""
    from dataclasses import asdict

    from ridgeline.base.clock import WallClock
    from ridgeline.engine.alike import FAIL
    from ridgeline.engine.verify import verify

    refuse(args, args.parser, "verify", _SETTLED)
    config, clock = engine_config(args), WallClock()
    begun_s = clock.now()

    def tell(line: str) -> None:
        if config.progress:
            print(f"verify: {line}", file=sys.stderr, flush=True)

    found = verify(config, tell=tell)
    failed = [one.what for one in found if one.verdict == FAIL]
    if args.json:
        print(json.dumps({"model": config.model, "ok": not failed, "seconds": clock.now() - begun_s,
                          "findings": [asdict(one) for one in found]}))
    else:
        print("\n".join(_table(found)))
        print(f"{len(failed)} of {len(found)} failed: {', '.join(failed)}" if failed
              else f"nothing failed; {clock.now() - begun_s:.0f} s")
    return 1 if failed else 0


def _table(found: "list[Finding]") -> list[str]:
    lines = [f"{'compared':26} {'positions':>9} {'largest, nat':>12} {'near ties':>9}  verdict"]
    for one in found:
        numbers = f"{one.positions:9d} {one.largest_nat:12.2g} {one.near_ties:9d}"
        beside = "" if one.kl_nat is None or one.top1 is None else \
            f"KL {one.kl_nat:.2g} nat, {one.top1:.1%} equal best tokens"
        note = "; ".join(filter(None, (beside, one.note)))
        lines.append(f"{one.what:26} {numbers if one.positions else '':32}  {one.verdict}"
                     + (f" ({note})" if note else ""))
    return lines
