"""Host memory behind the KV cache, and what memory pressure costs: decided and measured once at a start."""

import time

import torch

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.units import format_bytes
from ridgeline.engine.startup import Startup
from ridgeline.ledger.price import Price
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.pressure import Pressure
from ridgeline.spec.cache import CacheLayout

_PROBE_BYTES, _PROBES = 1 << 25, 3


def decide_host(config: EngineConfig, layout: CacheLayout, *, free_bytes: int, startup: Startup) -> int:
    """Pages of host memory, the null page included; 0 for none, unless it is asked for: pinning it takes
    seconds of a start. free_bytes: of the host. ConfigError when more is asked for than is free, or less than
    a page."""
    given, size = config.host_kv_bytes, layout.page_bytes
    if given > free_bytes:
        raise ConfigError(f"host_kv_bytes {format_bytes(given)} do not fit: {format_bytes(free_bytes)} of "
                          "host memory are free; set it to less")
    if given and (given < 2 * size or not config.cache):
        raise ConfigError(
            f"host_kv_bytes {given} is of no use: " + (
                f"a page takes {size} and one is set aside, give at least {2 * size}" if config.cache
                else "without a cache there is nothing to keep") + ", or 0")
    if not given:
        return 0
    return int(startup.choose("host_kv_bytes", given // size * size, "as given")) // size


def pressure_of(config: EngineConfig, capacity: Capacity, price: Price, device: torch.device,
                startup: Startup) -> Pressure:
    """What preemption costs here: computing again by the ledger's floor, swapping by the link's measured
    rate."""
    if config.kv_watermark_bytes < 0:
        raise ConfigError(f"kv_watermark_bytes is {config.kv_watermark_bytes}: set it to 0 or more")
    mark = config.kv_watermark_bytes
    cache_bytes = capacity.num_pages * capacity.layout.page_bytes
    if mark >= cache_bytes:
        raise ConfigError(f"kv_watermark_bytes {format_bytes(mark)} leaves nothing of a KV cache of "
                          f"{format_bytes(cache_bytes)}: set it to less")
    if not capacity.num_host_pages:
        return Pressure(watermark_bytes=mark)
    rate = startup.choose("host_link_bytes_per_s", round(measure_link(device)), "measured, there and back")
    return Pressure(recompute_s=lambda num_tokens: price.request(num_tokens, 0, 1),
                    swap_s=lambda num_bytes: 2 * num_bytes / rate, watermark_bytes=mark)


def measure_link(device: torch.device) -> float:
    """Bytes/s between the device's memory and the host's, the mean of both directions, at its best of a few
    tries."""
    here = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device=device)
    there = torch.empty(_PROBE_BYTES, dtype=torch.uint8, pin_memory=device.type != "cpu")
    best_s = float("inf")
    for _ in range(_PROBES + 1):  # the first touches the memory
        begun = time.perf_counter()
        there.copy_(here, non_blocking=True)
        here.copy_(there, non_blocking=True)
        if device.type != "cpu":
            torch.cuda.synchronize(device)
        best_s = min(best_s, time.perf_counter() - begun)
    return 2 * _PROBE_BYTES / best_s
