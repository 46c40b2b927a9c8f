"""Where a captured step's time goes: kernel by kernel, between them, and on the host. By torch's profiler,
which sees every kernel of a replay."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile

_REPLAYS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kernel's launches in a step together."""

    kernel: str
    launches: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Of a step whose kernels run one after another in a graph. gaps_s: when no kernel ran. replay_s,
    launch_s: the host's, for a replay and for launching it kernel by kernel."""

    parts: tuple[Part, ...]
    gaps_s: float
    replay_s: float
    launch_s: float

    def text(self) -> str:
        num = sum(part.launches for part in self.parts)
        whole_s = self.gaps_s + sum(part.seconds for part in self.parts)
        lines = [f"    {part.seconds * 1e3:8.3f} ms {part.seconds / whole_s:4.0%}  {part.kernel}, "
                 f"{part.launches} launches" for part in self.parts]
        lines.append(f"    {self.gaps_s * 1e3:8.3f} ms {self.gaps_s / whole_s:4.0%}  between {num} kernels, "
                     f"{self.gaps_s / max(num, 1) * 1e6:.2f} us each")
        lines.append(f"    host: {self.replay_s * 1e3:.3f} ms to replay it, {self.launch_s * 1e3:.3f} ms to "
                     "launch it kernel by kernel")
        return "\n".join(lines)


def split_step(step: Callable[[], object], graph: torch.cuda.CUDAGraph, seconds: float) -> Split:
    """step: launches its kernels in the current stream, none overlapping another. graph, seconds: the same
    captured, and what it takes."""
    launch_s = _host_s(step)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(_REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    parts = parts_of(((event.name, event.time_range.elapsed_us() / 1e6) for event in seen.events()
                      if event.device_type == torch.autograd.DeviceType.CUDA), _REPLAYS)
    return Split(parts=parts, gaps_s=max(0.0, seconds - sum(part.seconds for part in parts)),
                 replay_s=_host_s(graph.replay), launch_s=launch_s)


def parts_of(kernels: Iterable[tuple[str, float]], steps: int) -> tuple[Part, ...]:
    """Of (kernel, seconds) of so many equal steps, those of one, the longest together first."""
    found: dict[str, list[float]] = {}
    for name, seconds in kernels:
        found.setdefault(name.removeprefix("void ").partition("(")[0].partition("<")[0], []).append(seconds)
    parts = [Part(kernel=name, launches=round(len(each) / steps), seconds=sum(each) / steps)
             for name, each in found.items()]
    return tuple(sorted(parts, key=lambda part: -part.seconds))


def _host_s(run: Callable[[], object]) -> float:
    """Seconds until the call is back, the GPU being idle before."""
    times = []
    for _ in range(_REPLAYS):
        torch.cuda.synchronize()
        begun_s = perf_counter()
        run()
        times.append(perf_counter() - begun_s)
    torch.cuda.synchronize()
    return median(times)
