"""`ridgeline version`."""

import argparse

HELP = "print the version"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(args: argparse.Namespace) -> int:
    from importlib.metadata import version

    print(version("ridgeline"))
    return 0
