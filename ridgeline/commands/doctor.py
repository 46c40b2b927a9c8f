"""`ridgeline doctor`: the machine, the model, what was chosen and why, and where the seconds of a start went.
"""

import argparse

from ridgeline.commands.flags import add_engine_flags, engine_config

HELP = "show the environment, what the engine chooses here and why, and where its start spends time"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from ridgeline.commands.doctor_report import doctor

    return doctor(engine_config(args))
