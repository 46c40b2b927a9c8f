"""Measures every candidate for a linear on the GPU at hand. Only what computes rightly is timed."""

from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context

import torch
from torch import Tensor

from ridgeline.kernels.decode_linear import Call, DecodeLinears
from ridgeline.kernels.decode_linear.tuning import BUCKETS, Choice, Entry, LinearShape, Tuning, candidates
from ridgeline.kernels.gpu import Gpu, open_gpu
from ridgeline.kernels.timing import captured, median_s

_COLD_BYTES = 400 << 20  # of weights in turn: far more than any cache holds
_MAX_COPIES = 32
_TOLERANCE = 2e-2
_Job = tuple[str, LinearShape, int, Choice]


def operands(gpu: Gpu, shape: LinearShape, rows: int, copies: int | None = None) -> list[Call]:
    """Random calls of one shape, with different weights; None: as many as keep them out of every cache."""
    size = shape.weight_elements * 2
    copies = copies or max(2, min(_MAX_COPIES, -(-_COLD_BYTES // size)))

    def random(*sizes: int) -> Tensor:
        return torch.empty(sizes, device=gpu.device, dtype=torch.bfloat16).normal_()

    weights = random(copies, shape.weight_elements // shape.k, shape.k).mul_(shape.k**-0.5)
    x_MK = random(rows, shape.k)
    norm_K = random(shape.k) if shape.norm else None
    residual_MN = None if shape.norm else random(rows, shape.n)
    return [Call(x_MK=x_MK, weight=w, norm_K=norm_K, eps=1e-5, gated=shape.gated, residual_MN=residual_MN)
            for w in weights]


def time_calls(calls: Sequence[Call], run: Callable[[Call], object]) -> float:
    """Seconds of one call, its weights read from memory."""
    graph = captured(lambda: [run(call) for call in calls])
    return median_s(graph.replay) / len(calls)


def tune(gpu: Gpu, shapes: Iterable[LinearShape], buckets: Sequence[int] = BUCKETS, *, workers: int = 8,
         report: Callable[[str], object] = lambda line: None) -> list[Entry]:
    """The fastest candidate of each shape and bucket, in bfloat16. workers: processes that compile ahead."""
    work = [(shape, rows, candidates(shape, rows)) for shape in dict.fromkeys(shapes) for rows in buckets]
    jobs = [(str(gpu.device), shape, rows, c) for shape, rows, choices in work for c in choices]
    with get_context("spawn").Pool(workers) as pool:
        pool.map(_compile, jobs, chunksize=8)
    return [_best(gpu, shape, rows, choices, report) for shape, rows, choices in work if choices]


def _best(gpu: Gpu, shape: LinearShape, rows: int, choices: Sequence[Choice],
          report: Callable[[str], object]) -> Entry:
    linears, calls = DecodeLinears(gpu, Tuning.of(gpu.name, [])), operands(gpu, shape, rows)
    wanted, found = calls[0].reference().float(), []
    for choice in choices:
        try:
            got = linears.run(calls[0], choice).float()
            error = float((got - wanted).norm() / wanted.norm())
            if not error < _TOLERANCE:
                report(f"wrong by {error:.2g}: {shape} at {rows}, {choice}")
                continue
            time_s = time_calls(calls, lambda call, choice=choice: linears.run(call, choice))  # type: ignore[misc]
        except (RuntimeError, ValueError) as error:  # more shared memory or registers than there are
            report(f"cannot run: {shape} at {rows}, {choice}: {str(error)[:120]}")
            linears.locks.zero_()
            continue
        found.append(Entry(shape=shape, rows=rows, choice=choice, time_us=time_s * 1e6))
    best = min(found, key=lambda e: e.time_us)
    report(f"{best.time_us:9.2f} us  {shape} at {rows}: {best.choice}")
    return best


def _compile(job: _Job) -> None:
    """In a process of its own: leaves the kernel in Triton's cache. `_best` says what cannot run."""
    device, shape, rows, choice = job
    gpu = open_gpu(torch.device(device))
    try:
        DecodeLinears(gpu, Tuning.of(gpu.name, [])).run(operands(gpu, shape, rows, copies=1)[0], choice)
        torch.cuda.synchronize()
    except (RuntimeError, ValueError):
        return
