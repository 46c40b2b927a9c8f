"""What --deterministic needs of a device and a model; what cannot hold is refused at the start.

On a CPU every token goes by the path of a decode, packed weights by their own kernel, plain ones by products
of one shape (`nn/apart`), of which the library is asked whether a row hangs on its place. On a GPU every
token goes by the path of a prompt: tiles of one size, keys from the first on in one program, nothing
recorded.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.blocks.attention.gpu import fits
from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.engine.numerics import Numerics
from ridgeline.engine.startup import Startup
from ridgeline.kernels.gpu import Gpu
from ridgeline.nn.apart import ROWS, unlike
from ridgeline.spec.model import ModelSpec


def deterministic_device(
    config: EngineConfig, spec: ModelSpec, numerics: Numerics, device: torch.device, gpu: Gpu | None
) -> Gpu | None:
    """The GPU, told so where the config asks. ConfigError for a model that it has no such path for."""
    if config.deterministic and (config.lora or config.max_loras):
        raise ConfigError("deterministic: an adapter's products are not proved on a machine yet; leave out "
                          "lora and max_loras, or deterministic")
    if not config.deterministic or device.type == "cpu":
        return gpu
    if gpu is None:
        raise ConfigError("deterministic: without the Triton kernels a GPU's products hang on the number of "
                          "rows; install ridgeline[gpu], use device cpu, or leave deterministic out")
    if numerics.activations is not torch.bfloat16:
        raise ConfigError("deterministic: a GPU multiplies float32 by a library, whose order of summing "
                          "changes with the number of rows; use dtype bfloat16 or device cpu")
    unfit = {name for layer in spec.layers for name, block in layer.blocks if not (
        isinstance(block, MlpSpec) or (isinstance(block, AttentionSpec) and fits(block)))}
    if unfit:
        raise ConfigError("deterministic: on a GPU only plain attention and feed-forward blocks have one "
                          f"path for every number of rows, and {spec.family} has others "
                          f"({', '.join(sorted(unfit))}); use device cpu")
    return replace(gpu, apart=True)


def prove_products(weights: Mapping[str, Any], startup: Startup) -> None:
    """Ask the library about a product of each shape that the model has. ConfigError where a row hangs on its
    place or on the rows beside it."""
    plain = {(one.shape[-2:], one.dtype): name for name, one in weights.items()
             if isinstance(one, Tensor) and one.ndim >= 2 and one.device.type == "cpu"}
    for name in plain.values():
        weight = weights[name]
        if unlike(weight if weight.ndim == 2 else weight[0]):
            n, k = weight.shape[-2:]
            raise ConfigError(f"deterministic: this CPU's library does not give a row of {name} ({n} x {k}) "
                              f"the same bits at every place of a product of {ROWS} rows; use a quantized "
                              "GGUF, whose kernels are ours, or leave deterministic out")
    startup.choose("deterministic", "on", f"every token by one path; products of {ROWS} rows, "
                   f"{len(plain)} shapes of plain weights were asked" if plain else "every token by one path")
