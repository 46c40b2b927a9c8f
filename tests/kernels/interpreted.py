"""Runs a module of cases in Triton's interpreter. Triton decides at its import whether it interprets: cases
get a process of their own.

A module has CASES: name -> function of a Gpu and a dtype. `python -m tests.kernels.interpreted MODULE` writes
a JSON object of errors.
"""

import importlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def errors_of(module: str) -> dict[str, str]:
    """By case; "" where it holds."""
    done = subprocess.run([sys.executable, "-m", "tests.kernels.interpreted", module], cwd=ROOT, text=True,
                          capture_output=True, timeout=280, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(module: str) -> None:
    import torch

    from ridgeline.kernels.gpu import open_gpu
    from tests.kernels.triton_cases import poisoned

    torch.set_num_threads(1)
    gpu, errors = open_gpu(torch.device("cpu")), {}
    for name, case in importlib.import_module(module).CASES.items():
        errors[name] = ""
        try:
            with poisoned():
                case(gpu, torch.float32)
        except Exception:
            errors[name] = traceback.format_exc(limit=-3)
    json.dump(errors, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
