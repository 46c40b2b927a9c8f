"""`ridgeline calibrate`: measure this machine, and write a profile that plans use when it is named."""

import argparse

from ridgeline.commands.flags import count

HELP = "measure this machine in a few minutes and write a profile for plans"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", metavar="NAME",
                        help="of what is written, a name or a path (default: the machine's, -calibrated)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"),
                        help="what is measured (auto: a GPU where there is one)")
    parser.add_argument("--threads", type=count, metavar="N", help="compute threads of a CPU (all cores)")


def run(args: argparse.Namespace) -> int:
    from ridgeline.bench.calibrate import CalibrateArgs
    from ridgeline.bench.calibrate import run as run_calibrate

    return run_calibrate(CalibrateArgs(profile=args.profile, device=args.device, threads=args.threads))
