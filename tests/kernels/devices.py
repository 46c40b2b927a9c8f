"""Where cases of kernels run: in Triton's interpreter anywhere, on a GPU where there is one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from ridgeline.kernels.gpu import why_none

ROOT = Path(__file__).resolve().parents[2]
CUDA = torch.device("cuda")
ONLY_GPU = [pytest.mark.gpu, pytest.mark.skipif(bool(why_none(CUDA)), reason=why_none(CUDA))]


def on_gpu(values: Iterable[object]) -> list[Any]:
    """Parameters of a test that runs on a GPU alone."""
    return [pytest.param(value, marks=ONLY_GPU) for value in values]


@cache
def _interpreter() -> subprocess.Popen[str]:
    """One for all tests of this process, with whose end its input ends, and it."""
    return subprocess.Popen([sys.executable, "-m", "tests.kernels.interpreter"], cwd=ROOT, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            env={**os.environ, "TRITON_INTERPRET": "1"})


def interpreted(module: str, case: str) -> str:
    """The error of a case in Triton's interpreter, in float32; "" where it holds."""
    process = _interpreter()
    assert process.stdin is not None and process.stdout is not None
    try:
        print(json.dumps([module, case]), file=process.stdin, flush=True)
        answer: str = json.loads(process.stdout.readline())
    except BaseException:  # it died, or took too long: the next case gets another
        process.kill()
        _interpreter.cache_clear()
        raise
    return answer
