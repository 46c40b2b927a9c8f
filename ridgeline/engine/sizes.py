"""The numbers that a start decides: context, cache, step, threads; from the config or from the machine.

Arithmetic over what it is given, so that every rule can be tested without a model.
"""

from dataclasses import dataclass

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.units import GIB, format_bytes
from ridgeline.engine.startup import Startup
from ridgeline.kv.manager import KVManager
from ridgeline.spec.cache import CacheLayout

CACHE_SHARE = 4  # the KV cache takes at most one part in so many of the memory that is free
STEP_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """num_pages: of the arena, the null page included. The others: EngineConfig's, decided."""

    max_model_len: int
    max_num_batched_tokens: int
    num_pages: int


def decide_sizes(
    config: EngineConfig, layout: CacheLayout, *, max_position: int, free_bytes: int, startup: Startup
) -> Sizes:
    """Fill in what the config leaves open.

    free_bytes: memory that is left once the weights are there. Raises ConfigError when the context that is
    asked for is longer than the model's, or when the cache cannot hold a single block.
    """
    _check(config, max_position)
    wanted = config.max_model_len or max_position
    cache_bytes = _cache_bytes(config, layout, wanted, free_bytes, startup)
    num_pages = cache_bytes // layout.page_bytes
    if num_pages < 1 + layout.pages_for(1):
        least = (1 + layout.pages_for(1)) * layout.page_bytes
        raise ConfigError(
            f"kv_cache_bytes {cache_bytes} does not hold a single block: give at least {format_bytes(least)}"
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
    step_tokens = _step_tokens(config, max_model_len, startup)
    return Sizes(
        max_model_len=max_model_len,
        max_num_batched_tokens=step_tokens,
        num_pages=num_pages,
    )


def _check(config: EngineConfig, max_position: int) -> None:
    if config.max_num_seqs < 1:
        raise ConfigError(f"max_num_seqs is {config.max_num_seqs}: set it to at least 1")
    if config.block_tokens < 1:
        raise ConfigError(f"block_tokens is {config.block_tokens}: set it to at least 1, 16 is usual")
    if config.max_model_len is not None and not 1 < config.max_model_len <= max_position:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}: this model's context goes from 2 to {max_position}"
        )


def _cache_bytes(
    config: EngineConfig, layout: CacheLayout, max_model_len: int, free_bytes: int, startup: Startup
) -> int:
    """As given; else what all sequences at full length need, within a share of what is free."""
    if config.kv_cache_bytes is not None:
        return startup.choose("kv_cache_bytes", config.kv_cache_bytes, "as given")
    every = (layout.pages_for(max_model_len) * config.max_num_seqs + 1) * layout.page_bytes
    share = free_bytes // CACHE_SHARE
    if every <= share:
        return startup.choose(
            "kv_cache_bytes", every, f"{config.max_num_seqs} sequences of {max_model_len} tokens"
        )
    why = f"a quarter of the {free_bytes / GIB:.1f} GiB that are free"
    return startup.choose("kv_cache_bytes", share // layout.page_bytes * layout.page_bytes, why)


def _step_tokens(config: EngineConfig, max_model_len: int, startup: Startup) -> int:
    name, given = "max_num_batched_tokens", config.max_num_batched_tokens
    if given is not None:
        return startup.choose(name, given, "as given")
    if not config.cache:
        return startup.choose(
            name, max(max_model_len, config.max_num_seqs), "without a cache a step holds whole contexts"
        )
    if 2 * config.max_num_seqs > STEP_TOKENS:
        return startup.choose(
            name, 2 * config.max_num_seqs, "half of it for prompts while every sequence decodes"
        )
    return startup.choose(name, STEP_TOKENS, "large enough for fast prefill, short enough for steady streams")


def decide_threads(config: EngineConfig, cores: int, *, serving: bool, startup: Startup) -> int:
    """Compute threads: all cores, less one for HTTP and the text layer when serving."""
    if config.threads is not None:
        if config.threads < 1:
            raise ConfigError(f"threads is {config.threads}: set it to at least 1")
        return startup.choose("threads", config.threads, "as given")
    if serving and cores > 1:
        return startup.choose("threads", cores - 1, f"the {cores} cores less one for HTTP and text")
    return startup.choose("threads", cores, "all cores")
