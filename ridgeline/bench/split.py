"""Where a captured step's time goes: kernel by kernel, between them, and on the host. By torch's profiler,
which sees every kernel of a replay."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile

from ridgeline.engine.timing import captured, median_s

_REPLAYS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kernel's launches in a step together."""

    kernel: str
    launches: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A step of so many rows, its kernels one after another in a graph. gaps_s: of `seconds`, when no kernel
    ran. overlapped_s: the step whose kernels start while those before them drain; None where the GPU cannot.
    replay_s, launch_s: the host's, for a replay and for launching it kernel by kernel."""

    rows: int
    seconds: float
    parts: tuple[Part, ...]
    gaps_s: float
    overlapped_s: float | None
    replay_s: float
    launch_s: float

    def text(self) -> str:
        num = sum(part.launches for part in self.parts)
        lines = [f"  a step of {self.rows} rows as a graph, one kernel after another: "
                 f"{self.seconds * 1e3:.3f} ms"]
        lines += [f"    {part.seconds * 1e3:8.3f} ms {part.seconds / self.seconds:4.0%}  {part.kernel}, "
                  f"{part.launches} launches" for part in self.parts]
        lines.append(f"    {self.gaps_s * 1e3:8.3f} ms {self.gaps_s / self.seconds:4.0%}  between {num} "
                     f"kernels, {self.gaps_s / max(num, 1) * 1e6:.2f} us each")
        if self.overlapped_s is not None:
            lines.append(f"    overlapped (PDL) it takes {self.overlapped_s * 1e3:.3f} ms")
        lines.append(f"    host: {self.replay_s * 1e3:.3f} ms to replay it, {self.launch_s * 1e3:.3f} ms to "
                     "launch it kernel by kernel")
        return "\n".join(lines)


def split_step(step: Callable[[], object], overlapped_s: float | None, rows: int) -> Split:
    """step: launches its kernels in the current stream, none overlapping another."""
    step()
    launch_s = _host_s(step)
    graph = captured(step)
    seconds = median_s(graph.replay, repeats=15)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(_REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    kernels = [(event.name, event.time_range.elapsed_us() / 1e6) for event in seen.events()
               if event.device_type == torch.autograd.DeviceType.CUDA]
    parts = parts_of(kernels, _REPLAYS)
    return Split(rows=rows, seconds=seconds, parts=parts, overlapped_s=overlapped_s,
                 gaps_s=max(0.0, seconds - sum(part.seconds for part in parts)),
                 replay_s=_host_s(graph.replay), launch_s=launch_s)


def parts_of(kernels: Iterable[tuple[str, float]], steps: int) -> tuple[Part, ...]:
    """Of (kernel, seconds) of so many equal steps, those of one, the longest together first."""
    found: dict[str, list[float]] = {}
    for name, seconds in kernels:
        found.setdefault(name.partition("(")[0].removeprefix("void "), []).append(seconds)
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
