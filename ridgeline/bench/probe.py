"""Measures what the hardware gives: streaming read bandwidth and the rate of plain matrix products.

The floors of a benchmark are made of these rates, measured in the same run. Best of several: a floor wants
what the machine can do, and other load only takes away.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from ridgeline.base.units import MIB
from ridgeline.bench.machine import this_machine
from ridgeline.ledger.profile import MachineProfile

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
READ_BYTES = 256 * MIB  # far beyond the caches
_COLUMNS = 4096
_SIZES = (256, 512, 1024, 2048)
_BUDGET_S = 0.15  # of one measurement
_LONG_S = 0.15  # a product that takes longer is the last size tried
_RUNS = 3  # at the least


def _seconds(run: Callable[[], object]) -> float:
    """The best of as many runs as the budget allows, after one that warms up."""
    run()
    best, spent, done = float("inf"), 0.0, 0
    while done < _RUNS or spent < _BUDGET_S:
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent, done = min(best, took), spent + took, done + 1
    return best


def read_rate(num_bytes: int = READ_BYTES) -> float:
    """Bytes/s of reading `num_bytes` once, all threads together, by the faster of a sum and a matrix-vector
    product in float32. A model's own bytes are worth asking for too: a large cache may hold part of them."""
    rows = max(num_bytes // (4 * _COLUMNS), 1)
    matrix = torch.ones(rows, _COLUMNS)
    vector = torch.ones(_COLUMNS)
    best = min(_seconds(matrix.sum), _seconds(lambda: torch.mv(matrix, vector)))
    return matrix.numel() * 4 / best


def matmul_rate(dtype: str) -> float:
    """FLOP/s of the best square product in `dtype`; larger sizes are left out where a product takes long."""
    best = 0.0
    for size in _SIZES:
        a, b = (torch.randn(size, size).to(DTYPES[dtype]) for _ in range(2))
        seconds = _seconds(partial(torch.mm, a, b))
        best = max(best, 2.0 * size**3 / seconds)
        if seconds > _LONG_S:
            break
    return best


def better(one: MachineProfile, other: MachineProfile) -> MachineProfile:
    """Two probes of a machine as one: the higher of each rate, the rest from the first."""
    rates = {dtype: max(rate, other.flops_per_s[dtype]) for dtype, rate in one.flops_per_s.items()}
    return replace(one, read_bytes_per_s=max(one.read_bytes_per_s, other.read_bytes_per_s), flops_per_s=rates)


def probe_machine(name: str, model_bytes: int | None = None) -> MachineProfile:
    """This machine's profile, without step tables, at torch's current number of threads. Takes a few seconds.

    model_bytes: the bytes that a step of the model at hand reads; the better of the two read rates counts.
    """
    sizes = [READ_BYTES] if model_bytes is None else [READ_BYTES, min(model_bytes, READ_BYTES)]
    machine = this_machine()
    return MachineProfile(name=name, threads=torch.get_num_threads(), memory_bytes=machine.memory_bytes,
                          read_bytes_per_s=max(read_rate(size) for size in sizes),
                          flops_per_s={dtype: matmul_rate(dtype) for dtype in DTYPES}, about=machine.about())
