"""The command line: finds the command, turns a user's mistake into one line, and imports nothing heavy by
itself.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

from ridgeline.base.errors import RidgelineError
from ridgeline.commands.flags import config_argv

# Each is a module of ridgeline.commands with HELP, add_arguments(parser) and run(args) -> exit code.
COMMANDS = ("serve", "chat", "complete", "run-batch", "plan", "simulate", "bench", "calibrate", "labs",
            "key", "doctor", "verify", "version")


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """The whole command line, or that of the commands named."""
    parser = argparse.ArgumentParser(
        prog="ridgeline", description="LLM inference that can account for its numbers."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in names:
        module = _module(name)
        sub = commands.add_parser(name, help=module.HELP, description=module.HELP, allow_abbrev=False)
        module.add_arguments(sub)
        sub.set_defaults(parser=sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. 2 is a mistake of the user's, told in one line."""
    words = _joined(sys.argv[1:] if argv is None else argv)
    parser = build_parser(words[:1] if words and words[0] in COMMANDS else COMMANDS)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}{_hint(unknown, args.parser)}")
    try:
        if getattr(args, "config", None):
            args = _with_file(args, words)
        return _module(args.command).run(args)
    except RidgelineError as error:
        print(f"ridgeline {args.command}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130


def _joined(words: Sequence[str]) -> list[str]:
    """`--memory -80GB` as one word: argparse takes a word that begins with a minus for a flag, and the flag's
    own reader says more."""
    found: list[str] = []
    for word in words:
        if found and re.fullmatch(r"--[a-z-]+", found[-1]) and re.match(r"-\.?\d", word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _hint(unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    known = [flag for action in parser._actions for flag in action.option_strings]
    flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    near = [get_close_matches(flag, known, n=1) for flag in flags]
    return "".join(f"; did you mean {flag}?" for found in near for flag in found)


def _with_file(args: argparse.Namespace, words: list[str]) -> argparse.Namespace:
    """The flags of --config first, then those of the command line over them."""
    parser: argparse.ArgumentParser = args.parser
    from_file = parser.parse_args(config_argv(args.config, parser))
    for name, value in vars(args).items():
        if isinstance(value, list) and value:  # a list of the command line is the whole list
            setattr(from_file, name, [])
    model = from_file.model
    merged = parser.parse_args(words[1:], from_file)
    merged.model = merged.model or model
    merged.command = args.command
    return merged


def _module(name: str) -> ModuleType:
    return import_module("ridgeline.commands." + name.replace("-", "_"))


if __name__ == "__main__":
    sys.exit(main())
