"""`ridgeline complete`: continue one prompt on standard output."""

import argparse
import sys

from ridgeline.commands.flags import (
    OF_SERVERS,
    add_engine_flags,
    add_sampling_flags,
    engine_config,
    refuse,
    sampling_fields,
)

HELP = "continue a prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the text to continue, - for standard input")
    add_sampling_flags(parser.add_argument_group("sampling"))
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from ridgeline.commands.talk import local_talk

    refuse(args, args.parser, "complete", ("chat_template", *OF_SERVERS))
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    with local_talk(engine_config(args)) as talk:
        for event in talk.stream("/v1/completions", {"prompt": prompt, **sampling_fields(args)}):
            for choice in event["choices"]:
                print(choice["text"], end="", flush=True)
    print()
    return 0
