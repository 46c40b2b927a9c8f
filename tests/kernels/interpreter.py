"""The process in which Triton interprets: for each line of JSON that it reads, [module, case], it writes one,
the case's error or "". A module has CASES: name -> function of a Gpu and a dtype.

Triton decides at its import whether it interprets, so cases need a process of their own. They share it
(tests/kernels/devices.py), and `quicken` does once what Triton's interpreter does at every operation.
"""

import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from ridgeline.kernels.gpu import Gpu, open_gpu
from tests.kernels.triton_cases import poisoned


def quicken() -> None:
    """The language is made ready once, not at each launch and call; a type's twin in numpy is looked up once;
    reductions by functions of ours go by halves, as on a GPU, and not element by element."""
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    ready, twin = SimpleNamespace(restore=lambda: None), cache(interpreter._get_np_dtype)
    interpreter._patch_lang = lambda function: ready
    interpreter._get_np_dtype = lambda of: np.dtype(np.uint64) if of.scalar.is_ptr() else twin(of.scalar)
    interpreter.ReduceOps.generic_reduce = by_halves


def by_halves(self: Any, values: Sequence[Any]) -> list[Any]:
    """Of tensors whose axis is a power of two long, as all of Triton's are."""
    parts = [value.handle.data for value in values]
    types, axis = [value.dtype for value in values], self.axis
    assert axis is not None and not self.keep_dims
    while parts[0].shape[axis] > 1:
        halves = [np.split(part, 2, axis) for part in parts]
        sides = [self.to_tensor(half[i], of) for i in (0, 1) for half, of in zip(halves, types)]
        parts = [made.handle.data for made in self.combine_fn.fn(*sides)]
    return [self.to_tensor(part.squeeze(axis), of) for part, of in zip(parts, types)]


def error_of(gpu: Gpu, module: str, case: str) -> str:
    try:
        with poisoned(), redirect_stdout(sys.stderr):
            importlib.import_module(module).CASES[case](gpu, torch.float32)
    except Exception:
        return traceback.format_exc(limit=-3)
    return ""


def main() -> None:
    torch.set_num_threads(1)
    quicken()
    gpu = open_gpu(torch.device("cpu"))
    for line in sys.stdin:
        print(json.dumps(error_of(gpu, *json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
