"""`ridgeline key`: makes an API key, or hashes one, and prints its table for the file of --api-key-file."""

import argparse
import getpass
import sys

from ridgeline.base.units import parse_count
from ridgeline.commands.flags import positive, word, zero_or

HELP = "make or hash an API key: its table for a file of keys, which holds digests alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    whats = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, text in (("new", "make a key: its table on standard output, the key itself on standard error"),
                       ("hash", "hash a key that is there, read from the terminal or from standard input")):
        _add_limits(whats.add_parser(name, help=text, description=text, allow_abbrev=False))


def _add_limits(parser: argparse.ArgumentParser) -> None:
    count = positive(parse_count)
    parser.add_argument("--name", type=word, help="what the key's requests are known by in logs and policies")
    parser.add_argument("--priority", type=int, metavar="N",
                        help="no request of it is sooner; lower is sooner")
    parser.add_argument("--requests-per-minute", type=count, metavar="N", help="a minute's worth at once")
    parser.add_argument("--tokens-per-minute", type=count, metavar="N",
                        help="of prompts and answers together")
    parser.add_argument("--max-concurrent", type=count, metavar="N", help="most requests at work at a time")
    parser.add_argument("--thinking-budget", type=zero_or(count), metavar="TOKENS",
                        help="most of one thought")
    parser.add_argument("--admin", action="store_true",
                        help="it may load adapters, put the engine to sleep and change its weights")


def run(args: argparse.Namespace) -> int:
    from dataclasses import fields, replace

    from ridgeline.base.errors import ConfigError
    from ridgeline.server.keys import NAME, SHORTEST, Key, new_key, plain

    limits = {one.name: getattr(args, one.name) for one in fields(Key) if one.name != "digest"}
    if args.name is not None and not NAME.fullmatch(args.name):
        raise ConfigError("--name: up to 64 letters, digits and _ . @ -")
    if args.what == "new":
        key = new_key()
        print(f"the key, shown this once: {key}", file=sys.stderr)
    else:
        key = getpass.getpass("key: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
        if len(key) < SHORTEST or key.split() != [key]:
            raise ConfigError(f"a key has at least {SHORTEST} characters and no space: a shorter one can be "
                              "guessed from its digest; `ridgeline key new` makes one")
    print(replace(plain(key), **limits | {"name": args.name or ""}).as_toml())
    return 0
