"""Measures every candidate for a linear on the GPU at hand. Only what computes rightly is timed."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from multiprocessing import get_context
from statistics import median

import torch
from torch import Tensor

from ridgeline.bench.tiles import candidates
from ridgeline.engine.timing import captured, median_s
from ridgeline.kernels.cublaslt import open_cublaslt
from ridgeline.kernels.decode_linear import Call, DecodeLinears
from ridgeline.kernels.decode_linear.tuning import (
    BEYOND,
    BUCKETS,
    GUESSED_ROWS,
    LARGE,
    Choice,
    Entry,
    LinearShape,
    Tuning,
)
from ridgeline.kernels.gpu import Gpu, open_gpu

_COLD_BYTES = 400 << 20  # of weights in turn: far more than any cache holds
_MAX_COPIES = 32
_AGAIN, _ROUNDS = 4, 5
_SIZES = (2560, 5120, 7168, 7936)  # that stand for BEYOND
_GAIN = 0.99  # of the library's own choice's time, over all of them
_NEAR = (1, 0.5, 0.75, 1.5, 2)  # times the rows: what the library names there may serve here too
_TOLERANCE = 2e-2
_Job = tuple[str, LinearShape, int, Choice]


def operands(gpu: Gpu, shape: LinearShape, rows: int, copies: int | None = None) -> list[Call]:
    """Random calls of one shape, with different weights and, as in a model, into the residual where one is
    added. copies: None for as many as keep the weights out of every cache."""
    size = shape.weight_elements * 2
    copies = copies or max(2, min(_MAX_COPIES, -(-_COLD_BYTES // size)))

    def random(*sizes: int) -> Tensor:
        return torch.empty(sizes, device=gpu.device, dtype=torch.bfloat16).normal_()

    weights = random(copies, shape.weight_elements // shape.k, shape.k).mul_(shape.k**-0.5)
    x_MK = random(rows, shape.k)
    norm_K = random(shape.k) if shape.norm else None
    residual_MN = None if shape.norm else random(rows, shape.n)
    return [Call(x_MK=x_MK, weight=w, norm_K=norm_K, eps=1e-5, gated=shape.gated, residual_MN=residual_MN,
                 out_MN=residual_MN) for w in weights]


def time_calls(calls: Sequence[Call], run: Callable[[Call], object]) -> float:
    """Seconds of one call, its weights read from memory."""
    graph = captured(lambda: [run(call) for call in calls])
    return median_s(graph.replay) / len(calls)


def tune(gpu: Gpu, shapes: Collection[LinearShape], buckets: Sequence[int] = (*BUCKETS, *LARGE), *,
         workers: int = 8, report: Callable[[str], object] = lambda line: None) -> list[Entry]:
    """The fastest candidate of each shape and bucket, in bfloat16. workers: processes that compile ahead."""
    work = [(shape, rows, candidates(shape, rows) if rows <= BUCKETS[-1] else [Choice(form="torch")])
            for shape in dict.fromkeys(shapes) for rows in buckets]
    jobs = [(str(gpu.device), shape, rows, c) for shape, rows, choices in work for c in choices]
    with get_context("spawn").Pool(workers) as pool:
        pool.map(_compile, jobs, chunksize=8)
    best = []
    for shape, rows, choices in work:
        for entry in ranked(gpu, shape, rows, choices, report=report)[:1]:
            report(f"{entry.time_us:9.2f} us  {shape} at {rows}: {entry.choice}")
            best.append(entry)
    for shape in dict.fromkeys(shapes) if max(buckets) > BEYOND else ():
        best += _beyond(gpu, shape)
    return best


def ranked(gpu: Gpu, shape: LinearShape, rows: int, choices: Sequence[Choice],
           report: Callable[[str], object] = lambda line: None) -> list[Entry]:
    """The best of the choices and of the library's algorithms, the fastest first: all are timed once, the
    first few again in turns, since one pass flatters whoever meets a cool card."""
    linears, calls = _untuned(gpu), operands(gpu, shape, rows)
    first, found = calls[0], []
    residual_MN = torch.empty(0) if first.residual_MN is None else first.residual_MN  # each run adds to it
    before = residual_MN.clone()
    wanted = replace(first, out_MN=None).reference().float()
    for choice in (*choices, *_library(linears, first)):
        try:
            residual_MN.copy_(before)
            got = linears.run(first, choice).float()
            error = float((got - wanted).norm() / wanted.norm())
            if not error < _TOLERANCE:
                report(f"wrong by {error:.2g}: {shape} at {rows}, {choice}")
                continue
            graph = captured(lambda choice=choice: [linears.run(call, choice) for call in calls])  # type: ignore[misc]
            found.append((median_s(graph.replay, 3), choice, graph))
            found = sorted(found, key=lambda one: one[0])[:_AGAIN]
        except (RuntimeError, ValueError) as error:  # more shared memory or registers than there are
            report(f"cannot run: {shape} at {rows}, {choice}: {str(error)[:120]}")
            linears.locks.zero_()
    times = [[median_s(graph.replay, 3) for _, _, graph in found] for _ in range(_ROUNDS)]
    time_us = [median(each) / len(calls) * 1e6 for each in zip(*times)]
    return sorted((Entry(shape=shape, rows=rows, choice=choice, time_us=one)
                   for (_, choice, _), one in zip(found, time_us)), key=lambda entry: entry.time_us)


def _untuned(gpu: Gpu) -> DecodeLinears:
    """For choices of any kind, the library's among them."""
    linears = DecodeLinears(gpu, Tuning.of(gpu.name, []))
    linears.cublaslt = open_cublaslt(gpu.device)
    return linears


def _beyond(gpu: Gpu, shape: LinearShape) -> list[Entry]:
    """The algorithm that serves prompts of any length beyond BEYOND best; [] where the library's own choices
    are as good."""
    linears, shares = _untuned(gpu), dict[Choice, list[float]]()
    for rows in _SIZES:
        calls = operands(gpu, shape, rows, copies=4)
        usual_s = time_calls(calls, lambda call: linears.by_library(call, Choice(form="torch")))
        for choice in _library(linears, calls[0]) if rows == _SIZES[0] else [*shares]:
            time_s = time_calls(calls, lambda call, choice=choice: linears.by_library(call, choice))  # type: ignore[misc]
            shares.setdefault(choice, []).append(time_s / usual_s)
    best = min(shares, key=lambda choice: sum(shares[choice]), default=None)
    if best is None or sum(shares[best]) > _GAIN * len(_SIZES):
        return []
    return [Entry(shape=shape, rows=BEYOND, choice=best, time_us=0.0)]


def _library(linears: DecodeLinears, call: Call) -> list[Choice]:
    """The library's algorithms for a call, where its products may be the fastest."""
    rows, lt = len(call.x_MK), linears.cublaslt
    if lt is None or rows < GUESSED_ROWS:
        return []
    out_MN = torch.empty(rows, len(call.weight), dtype=call.x_MK.dtype, device=call.x_MK.device)
    names = lt.algorithms(call.x_MK, call.weight, out_MN, [int(rows * share) for share in _NEAR])
    return [Choice(form="lt", algorithm=name) for name in names]


def _compile(job: _Job) -> None:
    """In a process of its own: leaves the kernel in Triton's cache. `ranked` says what cannot run."""
    device, shape, rows, choice = job
    gpu = open_gpu(torch.device(device))
    try:
        DecodeLinears(gpu, Tuning.of(gpu.name, [])).run(operands(gpu, shape, rows, copies=1)[0], choice)
        torch.cuda.synchronize()
    except (RuntimeError, ValueError):
        return
