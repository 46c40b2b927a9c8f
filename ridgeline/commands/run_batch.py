"""`ridgeline run-batch`: a file of requests in OpenAI's batch format."""

import argparse
from pathlib import Path

from ridgeline.commands.flags import add_engine_flags, engine_config

HELP = "answer a file of requests in OpenAI's batch format; run it again to go on where it stopped"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a JSON line a request: custom_id, method, url, body")
    parser.add_argument(
        "output", type=Path, help="a JSON line an answer; custom_ids that are there are skipped"
    )
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from ridgeline.commands.batch import run_batch

    return run_batch(args.input, args.output, engine_config(args))
