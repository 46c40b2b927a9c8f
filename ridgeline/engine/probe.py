"""Measures what the hardware gives: streaming read bandwidth and the rates of matrix products.

Floors are made of these rates, and other load must not hold them down. So threads do not work together, where
one that waits for its turn stops all: each computes alone, in runs shorter than a turn, all at the same time,
and the best of their runs add up.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Barrier, BrokenBarrierError

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.errors import ConfigError
from ridgeline.base.units import MIB
from ridgeline.engine.ceilings import measure_ceilings
from ridgeline.engine.machine import this_machine
from ridgeline.kernels.cpu.native import native
from ridgeline.ledger.profile import MachineProfile
from ridgeline.quant.format import GgufBlocks
from ridgeline.quant.packed import Packing32
from ridgeline.spec.block import ParamSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SHARE_BYTES = 16 * MIB  # of a thread, at the least, with many threads
_PIECE_BYTES, _COLUMNS = 4 * MIB, 4096
_SIZES = (128, 256, 512, 1024)
_LONGEST_S = 0.02  # a product that would take longer is not tried
_CODED, _CODED_ROWS = 512, 32
_RUNS = 3  # at the least
_PATIENCE_S = 30.0  # with a thread that cannot start


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to look. read_bytes: beyond the caches. budget_s: of one of about eight measurements."""

    read_bytes: int
    budget_s: float


FULL = Effort(read_bytes=256 * MIB, budget_s=0.25)
QUICK = Effort(read_bytes=128 * MIB, budget_s=0.03)


def probe_machine(name: str, model_bytes: int | None = None, effort: Effort = FULL) -> MachineProfile:
    """This machine's profile, without step tables, at torch's current number of threads.

    model_bytes: what a step of the model at hand reads, since a large cache may hold part of it; the better
    of the two read rates counts. The rate "int8" is that of the packed kernels, where they are.
    """
    machine, threads = this_machine(), torch.get_num_threads()
    beyond = max(effort.read_bytes, threads * _SHARE_BYTES)
    sizes = {beyond, min(model_bytes or beyond, beyond)}
    rates = {dtype: matmul_rate(dtype, effort) for dtype in DTYPES}
    coded = coded_rate(effort)
    if coded is not None:
        rates["int8"] = coded
    return MachineProfile(name=name, threads=threads, memory_bytes=machine.memory_bytes,
                          read_bytes_per_s=max(read_rate(size, effort) for size in sizes),
                          flops_per_s=rates, about=machine.about())


def probe_gpu(name: str, device: torch.device) -> MachineProfile:
    """A GPU's profile, without step tables. Takes 2.5 GiB of it for a moment."""
    found = measure_ceilings(device)
    torch.cuda.empty_cache()
    about = this_machine().about() | {"gpu": torch.cuda.get_device_name(device)}
    rates = {"bfloat16": found.flops_s, "float32": found.float32_flops_s}
    return MachineProfile(name=name, threads=torch.get_num_threads(),
                          memory_bytes=torch.cuda.get_device_properties(device).total_memory,
                          read_bytes_per_s=found.read_bytes_s, flops_per_s=rates, about=about)


def better(one: MachineProfile, other: MachineProfile) -> MachineProfile:
    """Two probes of a machine as one: the higher of each rate, the rest from the first."""
    rates = {dtype: max(rate, other.flops_per_s[dtype]) for dtype, rate in one.flops_per_s.items()}
    return replace(one, read_bytes_per_s=max(one.read_bytes_per_s, other.read_bytes_per_s), flops_per_s=rates)


def read_rate(num_bytes: int, effort: Effort = FULL) -> float:
    """Bytes/s of reading `num_bytes` again and again, a share each thread, as matrix-vector products in
    float32 over a few megabytes at a time. A tenth of the pieces may be faster: a cache held them."""
    threads = torch.get_num_threads()
    columns = min(_COLUMNS, max(num_bytes // (4 * threads), 1))
    rows = max(num_bytes // (4 * columns * threads), 1)
    step = max(_PIECE_BYTES, threads * _PIECE_BYTES // 8) // (4 * columns)  # many threads wait for Python

    def measure(start: Barrier) -> float:
        pieces, vector = torch.ones(rows, columns).split(step), torch.ones(columns)
        start.wait()
        times_s = [_timed(partial(torch.mv, piece, vector)) for piece in pieces]
        until = time.perf_counter() + effort.budget_s
        while time.perf_counter() < until:
            times_s += [_timed(partial(torch.mv, piece, vector)) for piece in pieces]
        return 4 * columns * min(step, rows) / sorted(times_s)[len(times_s) // 10]

    return _together(measure)


def matmul_rate(dtype: str, effort: Effort = FULL) -> float:
    """FLOP/s of the best square product in `dtype`."""

    def measure(start: Barrier) -> float:
        best = 0.0
        start.wait()
        for size in _SIZES:
            a, b = (torch.randn(size, size).to(DTYPES[dtype]) for _ in range(2))
            seconds = _best(partial(torch.mm, a, b), effort)
            best = max(best, 2.0 * size**3 / seconds)
            if 8 * seconds > _LONGEST_S:  # the next size
                break
        return best

    return _together(measure)


def coded_rate(effort: Effort = FULL) -> float | None:
    """FLOP/s of the packed product, codes by codes; None where its kernels are not."""
    kernels = native()
    if kernels is None:
        return None
    weight = Packing32(kernels, planes=2).pack(_Coded(), torch.device("cpu"))
    assert not isinstance(weight, Tensor)

    def measure(start: Barrier) -> float:
        run = partial(weight.apply, torch.randn(_CODED_ROWS, _CODED), _CODED_ROWS)
        start.wait()
        return 2.0 * _CODED_ROWS * _CODED**2 / _best(run, effort)

    return _together(measure)


class _Coded:
    """A weight of random 4-bit codes, as a checkpoint would give it."""

    name = "probe.weight"
    param = ParamSpec(name="weight", shape=(_CODED, _CODED), role="linear")

    def blocks(self) -> tuple[GgufBlocks, ...]:
        """Q4_0: 2 bytes of scale, 16 of codes."""
        raw = np.random.default_rng(0).integers(0, 256, (_CODED, _CODED // 32, 18), np.uint8)
        raw[..., :2] = np.array([0.01], np.float16).view(np.uint8)
        return (GgufBlocks(kind="q4_0", columns=_CODED, raw_RB=raw.reshape(_CODED, -1)),)

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Nobody asks: blocks of this kind are packed as they are."""
        raise AssertionError("the packing unpacked what it should keep")


def _together(measure: Callable[[Barrier], float]) -> float:
    """The sum of what every thread measures, each on one core. Leaves torch's number of threads as it was."""
    threads = torch.get_num_threads()
    start = Barrier(threads, timeout=_PATIENCE_S)
    try:
        with ThreadPoolExecutor(threads, "probe", torch.set_num_threads, (1,)) as pool:
            return sum(pool.map(measure, [start] * threads))
    except BrokenBarrierError:
        raise ConfigError(f"{threads} threads did not come together within {_PATIENCE_S:g} s on this "
                          "machine: lower --threads") from None
    finally:
        torch.set_num_threads(threads)


def _best(run: Callable[[], object], effort: Effort) -> float:
    """The best of as many runs as the budget allows, after one that warms up, seconds."""
    run()
    times_s = [_timed(run) for _ in range(_RUNS)]
    until = time.perf_counter() + effort.budget_s
    while time.perf_counter() < until:
        times_s.append(_timed(run))
    return min(times_s)


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
