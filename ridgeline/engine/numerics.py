"""Which numbers a model is computed in: activations, cache, and how each weight is held."""

from dataclasses import dataclass

import torch

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.engine.startup import Startup
from ridgeline.nn.load import Policy, dense

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """name: in reports. policy: how `nn.load` packs each weight."""

    name: str
    activations: torch.dtype
    cache: torch.dtype
    policy: Policy


def choose_device(config: EngineConfig, startup: Startup) -> torch.device:
    """ConfigError for a device that we do not run on."""
    if config.device not in ("auto", "cpu"):
        raise ConfigError(f"device {config.device!r} is not there yet: use cpu")
    startup.choose(
        "device", "cpu", "as given" if config.device == "cpu" else "the one device that is supported"
    )
    return torch.device("cpu")


def choose_numerics(config: EngineConfig, startup: Startup) -> Numerics:
    """ConfigError for a dtype, cache dtype or quantization that is not there."""
    if config.quantization is not None:
        raise ConfigError(f"quantization {config.quantization!r} is not there yet: leave it out")
    if config.dtype not in ("auto", *DTYPES):
        raise ConfigError(f"dtype {config.dtype!r} is not known: use auto, {' or '.join(DTYPES)}")
    if config.kv_cache_dtype not in ("auto", *DTYPES):
        raise ConfigError(
            f"kv_cache_dtype {config.kv_cache_dtype!r} is not there: use auto, {' or '.join(DTYPES)}"
        )
    name = config.dtype if config.dtype != "auto" else "float32"
    startup.choose("dtype", name, "as given" if config.dtype != "auto" else "exact on every CPU")
    cache = config.kv_cache_dtype if config.kv_cache_dtype != "auto" else name
    startup.choose(
        "kv_cache_dtype", cache, "as given" if config.kv_cache_dtype != "auto" else "that of the activations"
    )
    return Numerics(name=name, activations=DTYPES[name], cache=DTYPES[cache], policy=dense(DTYPES[name]))
