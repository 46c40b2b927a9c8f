"""What else a machine is measured for beside its two rates: products by shape, attention, launches, the link
to the host, and collectives where there are several devices. The same code on a CPU and on CUDA, which times
by events."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

_HIDDEN, _ROWS = 4096, (1, 16, 128, 1024)
_HEADS, _KV_HEADS, _HEAD_DIM, _CONTEXT = 32, 8, 128, 2048
_LAUNCHES, _REPEATS, _LONGEST_S = 64, 7, 2.0
_LINK_BYTES, _SMALL = 256 << 20, 8192


def measure_machine(device: torch.device) -> dict[str, float]:
    """Figures by name; the name's end is the unit. Takes about 0.6 GB of the device for a moment."""
    dtypes = {"bfloat16": torch.bfloat16} if device.type == "cuda" else {"float32": torch.float32}
    found: dict[str, float] = {}
    hidden = _HIDDEN if device.type == "cuda" else _HIDDEN // 4
    for name, dtype in dtypes.items():
        weight = torch.randn(hidden, hidden, device=device, dtype=dtype)
        for rows in _ROWS:
            x = torch.randn(rows, hidden, device=device, dtype=dtype)
            seconds = _timed(device, partial(linear, x, weight))
            found[f"product_{name}_{rows}x{hidden}x{hidden}_flops_per_s"] = 2.0 * rows * hidden**2 / seconds
        found[f"attention_decode_{name}_bytes_per_s"] = _attention(device, dtype)
    found["launch_s"] = _launch(device)
    if device.type == "cuda":
        found |= _host_link(device) | _collectives()
        torch.cuda.empty_cache()
    return found


def _attention(device: torch.device, dtype: torch.dtype) -> float:
    """Bytes/s of keys and values in one decode of a few rows, as torch does it."""
    rows = 16 if device.type == "cuda" else 1
    query = torch.randn(rows, _HEADS, 1, _HEAD_DIM, device=device, dtype=dtype)
    keys, values = torch.randn(2, rows, _KV_HEADS, _CONTEXT, _HEAD_DIM, device=device, dtype=dtype)
    seconds = _timed(device, lambda: scaled_dot_product_attention(query, keys, values, enable_gqa=True))
    return (keys.nbytes + values.nbytes) / seconds


def _launch(device: torch.device) -> float:
    """Seconds of one smallest operation in a row of many."""
    x = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(_LAUNCHES):
            x.add_(1.0)

    return _timed(device, many) / _LAUNCHES


def _host_link(device: torch.device) -> dict[str, float]:
    """Bytes/s of pinned memory to the device and back."""
    host = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_LINK_BYTES, dtype=torch.uint8, device=device)
    up_s = _timed(device, lambda: there.copy_(host, non_blocking=True))
    down_s = _timed(device, lambda: host.copy_(there, non_blocking=True))
    return {"host_to_device_bytes_per_s": _LINK_BYTES / up_s,
            "device_to_host_bytes_per_s": _LINK_BYTES / down_s}


def _collectives() -> dict[str, float]:
    """All-reduces over all devices of this process: the smallest, and the bytes/s each device sends in a
    large one; nothing with one device."""
    num = torch.cuda.device_count()
    if num < 2:
        return {}
    first = torch.device("cuda", 0)

    def reduce_s(size: int) -> float:
        parts: list[Tensor] = [torch.ones(size, device=f"cuda:{i}", dtype=torch.bfloat16) for i in range(num)]
        return _timed(first, lambda: torch.cuda.nccl.all_reduce(parts))

    large = _LINK_BYTES // 2
    return {f"all_reduce_{num}_small_s": reduce_s(_SMALL),
            f"all_reduce_{num}_sent_bytes_per_s": 2 * (num - 1) / num * _LINK_BYTES / reduce_s(large)}


def _timed(device: torch.device, run: Callable[[], object]) -> float:
    """Median seconds of a few runs after one that warms up, by events on CUDA."""
    if device.type == "cuda":
        from ridgeline.engine.timing import median_s

        return median_s(run, repeats=_REPEATS)
    run()
    times_s: list[float] = []
    until = time.perf_counter() + _LONGEST_S
    while len(times_s) < _REPEATS and (len(times_s) < 2 or time.perf_counter() < until):
        start = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - start)
    return median(times_s)
