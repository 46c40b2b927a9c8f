"""Times what a GPU does, by events around a captured graph, so that the host's launches are not in it."""

from collections.abc import Callable
from statistics import median

import torch


def captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """`run` as a graph, after one warm-up. What it allocates lives as long as the graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def median_s(run: Callable[[], object], repeats: int = 9) -> float:
    """Seconds on the GPU, the median after one warm-up."""
    run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return median(times)
