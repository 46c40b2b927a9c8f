"""The numbers that a start decides: context, cache, step, threads; from the config or from the machine.

Arithmetic over what it is given, so that every rule can be tested without a model.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.units import GIB, format_bytes
from ridgeline.engine.startup import Startup
from ridgeline.kv.manager import KVManager
from ridgeline.ledger.memory import step_bytes
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.policies.table import step_tokens as policy_tokens
from ridgeline.spec.cache import CacheLayout
from ridgeline.spec.model import ModelSpec

CACHE_SHARE = 4  # the KV cache takes at most one part in so many of the memory that is free
STEP_TOKENS = 512
GPU_STEP_TOKENS = 8192  # fills a GPU's tensor cores; a fifth of a second with 8B weights
BLOCK_TOKENS, GPU_BLOCK_TOKENS = 16, 64
_RESERVE = 0.02  # of a GPU, for its libraries and what the allocator loses
_ATTENTION_BYTES, _NODE_BYTES = 512 << 20, 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """num_pages: of the arena, the null page included. The others: EngineConfig's, decided."""

    max_model_len: int
    max_num_batched_tokens: int
    num_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRoom:
    """A GPU's memory once the weights and the slots of adapters are there, in bytes: free, and what of it
    steps and graphs will take. change: what to set so that a cache has room too; "" where it has, and where
    nothing helps."""

    total_bytes: int
    weights_bytes: int
    free_bytes: int
    step_bytes: int
    graph_bytes: int
    adapter_bytes: int = 0
    change: str = ""

    @property
    def cache_bytes(self) -> int:
        """What is left for the KV cache; the rest of RESERVE is the driver's and the allocator's."""
        return int(self.free_bytes - self.step_bytes - self.graph_bytes - _RESERVE * self.total_bytes)

    def text(self) -> str:
        total, free, weights, steps, graphs = map(format_bytes, (
            self.total_bytes, self.free_bytes, self.weights_bytes, self.step_bytes, self.graph_bytes))
        slots = f" and adapters of {format_bytes(self.adapter_bytes)}" if self.adapter_bytes else ""
        return (f"of {total} on the GPU {free} are free beside weights of {weights}{slots}; steps take "
                f"{steps} of it, graphs {graphs}")


def graph_bytes(spec: ModelSpec, *, num_seqs: int, num_tokens: int, element_bytes: int,
                adapted: bool = False) -> int:
    """What graphs of steps of up to num_seqs rows and num_tokens tokens take: the memory that they share, and
    their nodes. adapted: each is there a second time, for rows with adapters."""
    shared = _ATTENTION_BYTES + num_seqs * spec.hidden_size * 32 * element_bytes
    shared += step_bytes(spec, step_tokens=num_tokens, num_seqs=0, context=0, element_bytes=element_bytes)
    return shared + (1 + adapted) * _NODE_BYTES * len(spec.layers)


def least_cache_bytes(layout: CacheLayout) -> int:
    """Of a cache that holds one block, and the null page."""
    return (1 + layout.pages_for(1)) * layout.page_bytes


def change_that_fits(config: EngineConfig, room: Callable[[int, int], GpuRoom], least_bytes: int) -> str:
    """What leaves a cache of least_bytes: shorter steps, else fewer sequences; "" where neither does. room:
    of (tokens of a step, sequences)."""
    tokens, rows = step_tokens(config, on_gpu=True), config.max_num_seqs
    for size in [tokens >> i for i in range(1, tokens.bit_length())]:
        if size >= policy_tokens(config.policy) and room(size, rows).cache_bytes >= least_bytes:
            return f"set max_num_batched_tokens to {size}"
    for fewer in [rows >> i for i in range(1, rows.bit_length())]:
        if room(tokens, fewer).cache_bytes >= least_bytes:
            return f"set max_num_seqs to {fewer}"
    return ""


def check_weights(spec: ModelSpec, *, element_bytes: int, free_bytes: int, total_bytes: int) -> None:
    """ConfigError, before anything is loaded, when the weights alone are too large for the GPU."""
    needed = spec.num_params * element_bytes
    if needed > free_bytes:
        raise ConfigError(
            f"the weights take {format_bytes(needed)} and {format_bytes(free_bytes)} of the GPU's "
            f"{format_bytes(total_bytes)} are free: free the rest, or run this model with device cpu")


def block_tokens(config: EngineConfig, *, on_gpu: bool) -> int:
    """Tokens of a block: as given, else what the device's kernels read best."""
    return config.block_tokens or (GPU_BLOCK_TOKENS if on_gpu else BLOCK_TOKENS)


def step_tokens(config: EngineConfig, *, on_gpu: bool) -> int:
    """Tokens of a step for a cache: as given, else what the device multiplies well."""
    usual = GPU_STEP_TOKENS if on_gpu else STEP_TOKENS
    return config.max_num_batched_tokens or max(usual, 2 * config.max_num_seqs, policy_tokens(config.policy))


def decide_sizes(
    config: EngineConfig, layout: CacheLayout, *, max_position: int, free_bytes: int, startup: Startup,
    room: GpuRoom | None = None, recorded_bytes: int = 0, adapter_bytes: int = 0,
) -> Sizes:
    """Fill in what the config leaves open.

    free_bytes: memory that is left once the weights are there. room: the GPU's, where the cache lies there.
    recorded_bytes: what the recording of decode steps will take of a CPU's free memory (nn.replay).
    adapter_bytes: what all slots of adapters will; a GPU's have it already. Raises ConfigError when the
    context that is asked for is longer than the model's, when the adapters do not fit, or when the cache
    cannot hold a single block.
    """
    _check(config, max_position)
    wanted = config.max_model_len or max_position
    if room is None:
        if adapter_bytes > free_bytes - recorded_bytes:
            raise ConfigError(
                f"slots for adapters take {format_bytes(adapter_bytes)} and {format_bytes(free_bytes)} are "
                "free: lower --max-loras or --max-lora-rank"
            )
        free_bytes = max(free_bytes - recorded_bytes - adapter_bytes, 0)
        if config.kv_cache_bytes is not None and config.kv_cache_bytes > free_bytes:
            raise ConfigError(
                f"kv_cache_bytes {format_bytes(config.kv_cache_bytes)} do not fit: of memory "
                f"{format_bytes(free_bytes)} are free"
            )
        why = f"a quarter of the {free_bytes / GIB:.1f} GiB that are free"
        for taken, what in ((recorded_bytes, "recorded decode steps"), (adapter_bytes, "adapters")):
            if taken:
                why += f" beside {format_bytes(taken)} for {what}"
        cache_bytes = _cache_bytes(config, layout, wanted, free_bytes // CACHE_SHARE, startup, why)
    else:
        _check_room(config, layout, room)
        cache_bytes = _cache_bytes(config, layout, wanted, room.cache_bytes, startup, room.text())
    num_pages = cache_bytes // layout.page_bytes
    if num_pages < 1 + layout.pages_for(1):
        raise ConfigError(
            f"kv_cache_bytes {cache_bytes} does not hold a single block: give at least "
            f"{format_bytes(least_cache_bytes(layout))}"
        )
    largest = KVManager(layout, num_pages).largest_request(wanted)
    if config.max_model_len is not None:
        max_model_len = startup.choose("max_model_len", wanted, "as given")
    elif largest < wanted:
        max_model_len = startup.choose(
            "max_model_len", largest, f"what the KV cache holds of the model's {wanted}"
        )
    else:
        max_model_len = startup.choose("max_model_len", wanted, "the model's own context")
    return Sizes(
        max_model_len=max_model_len,
        max_num_batched_tokens=_step_tokens(config, max_model_len, room is not None, startup),
        num_pages=num_pages,
    )


def _check(config: EngineConfig, max_position: int) -> None:
    if config.max_num_seqs < 1:
        raise ConfigError(f"max_num_seqs is {config.max_num_seqs}: set it to at least 1")
    if config.block_tokens is not None and config.block_tokens < 1:
        raise ConfigError(f"block_tokens is {config.block_tokens}: set it to at least 1, 16 is usual")
    if config.max_model_len is not None and not 1 < config.max_model_len <= max_position:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}: this model's context goes from 2 to {max_position}"
        )


def _check_room(config: EngineConfig, layout: CacheLayout, room: GpuRoom) -> None:
    least = least_cache_bytes(layout)
    if room.cache_bytes < least:
        missing = format_bytes(least - room.cache_bytes)
        raise ConfigError(
            f"{room.text()}: {format_bytes(max(0, room.cache_bytes))} are left for the KV cache, which needs "
            f"{format_bytes(least)} at least; {room.change or f'free another {missing}, or use device cpu'}")
    if config.kv_cache_bytes is not None and config.kv_cache_bytes > room.cache_bytes:
        raise ConfigError(
            f"kv_cache_bytes {format_bytes(config.kv_cache_bytes)} do not fit: {room.text()}; "
            f"set it to at most {room.cache_bytes}")


def _cache_bytes(
    config: EngineConfig, layout: CacheLayout, max_model_len: int, most: int, startup: Startup, why: str
) -> int:
    """As given; else what all sequences at full length need, up to `most`, which is `why`."""
    if config.kv_cache_bytes is not None:
        return startup.choose("kv_cache_bytes", config.kv_cache_bytes, "as given")
    every = (layout.pages_for(max_model_len) * config.max_num_seqs + 1) * layout.page_bytes
    if every <= most:
        return startup.choose(
            "kv_cache_bytes", every, f"{config.max_num_seqs} sequences of {max_model_len} tokens"
        )
    return startup.choose("kv_cache_bytes", most // layout.page_bytes * layout.page_bytes, why)


def _step_tokens(config: EngineConfig, max_model_len: int, on_gpu: bool, startup: Startup) -> int:
    name, given = "max_num_batched_tokens", config.max_num_batched_tokens
    wanted = policy_tokens(config.policy)
    if given is not None:
        if wanted > given:
            raise ConfigError(f"policy {config.policy}: a step holds {given} tokens; set {name} to {wanted} "
                              "at least, or leave it out")
        return startup.choose(name, given, "as given")
    if not config.cache:
        return startup.choose(
            name, max(max_model_len, config.max_num_seqs), "without a cache a step holds whole contexts"
        )
    tokens = step_tokens(config, on_gpu=on_gpu)
    if tokens == wanted:
        return startup.choose(name, tokens, f"policy {config.policy}")
    if tokens == 2 * config.max_num_seqs:
        return startup.choose(name, tokens, "half of it for prompts while every sequence decodes")
    return startup.choose(name, tokens, "large enough for fast prefill, short enough for steady streams")


def decide_threads(config: EngineConfig, cores: int, *, serving: bool, startup: Startup) -> int:
    """Compute threads: all cores, less one for HTTP and the text layer when serving."""
    if config.threads is not None:
        if config.threads < 1:
            raise ConfigError(f"threads is {config.threads}: set it to at least 1")
        return startup.choose("threads", config.threads, "as given")
    if serving and cores > 1:
        return startup.choose("threads", cores - 1, f"the {cores} cores less one for HTTP and text")
    return startup.choose("threads", cores, "all cores")


def say_largest_request(most: int, capacity: Capacity, startup: Startup) -> None:
    """A cache smaller than the context: the operator hears at start which requests will be refused."""
    if most >= capacity.max_model_len:
        return
    held = format_bytes(capacity.num_pages * capacity.layout.page_bytes)
    needed = format_bytes(
        (capacity.layout.pages_for(capacity.max_model_len) + 1) * capacity.layout.page_bytes
    )
    why = (
        f"prompt and output of the largest request that a KV cache of {held} holds; the whole context of "
        f"{capacity.max_model_len} tokens needs kv_cache_bytes {needed}"
    )
    startup.choose("max_request_tokens", most, why)
