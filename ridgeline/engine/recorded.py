"""Where an engine's records go, and what a replay of them needs."""

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.trace import JsonlTrace, Tee, Trace
from ridgeline.ledger.profile import MachineProfile
from ridgeline.runner.gpu import GpuExecutor
from ridgeline.runner.runner import LocalExecutor
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.origin import Origin
from ridgeline.schedule.records import ForReplay
from ridgeline.schedule.targets import Targets


def for_replay(config: EngineConfig, capacity: Capacity) -> ForReplay | None:
    if config.trace_file is None:
        return None
    return ForReplay(block_tokens=capacity.layout.block_tokens, texts=config.trace_texts)


def origin_of(
    config: EngineConfig, capacity: Capacity, targets: Targets, executor: LocalExecutor | GpuExecutor,
    stride: int, kept_bytes: int | None,
) -> Origin:
    """What a replay makes the scheduler of again."""
    return Origin(
        capacity=capacity, policy=config.policy, targets=targets, overload=config.overload,
        prefix_caching=config.prefix_caching, cache=config.cache, watermark_bytes=config.kv_watermark_bytes,
        snapshot_stride=stride, snapshot_bytes=kept_bytes, max_in_flight=executor.max_in_flight,
    )


def records_to(given: Trace | None, file: JsonlTrace | None, origin: Origin) -> Trace | None:
    """Where records go; the file's header says how the engine was made."""
    if file is not None:
        file.head({"engine": origin.as_json()})
    traces = [one for one in (given, file) if one is not None]
    return Tee(*traces) if len(traces) > 1 else traces[0] if traces else None


def trace_file(
    config: EngineConfig, name: str, numerics: str, profile: MachineProfile
) -> JsonlTrace | None:
    if config.trace_file is None:
        return None
    rates = {f"{dtype}_flops_per_s": rate for dtype, rate in profile.flops_per_s.items()}
    about: dict[str, str | int | float] = {
        "model": name, "numerics": numerics, "profile": profile.name, "threads": profile.threads,
        "read_bytes_per_s": profile.read_bytes_per_s, **rates,
    }  # fmt: skip
    try:
        return JsonlTrace(config.trace_file, about)
    except OSError as error:
        raise ConfigError(f"trace_file cannot be written: {error}") from None
