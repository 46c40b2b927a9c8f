"""What --deterministic needs of a device and a model; what cannot hold is refused at the start.

On a CPU every token goes by the path of a decode, packed weights by their own kernel, plain ones by products
of one shape (`nn/apart`), of which the library is asked whether a row hangs on its place; so are those of
adapters. On a GPU every token goes by the path of a prompt: tiles of one size, keys from the first on in one
program, nothing recorded.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.adapters.load import Adapter
from ridgeline.adapters.slots import TILE, AdapterSlots, Touched
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import CheckpointError, ConfigError
from ridgeline.blocks.attention.gpu import fits
from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.engine.numerics import Numerics
from ridgeline.engine.startup import Startup
from ridgeline.kernels.gpu import Gpu
from ridgeline.nn.apart import ROWS, hangs_on_place, unlike
from ridgeline.spec.model import ModelSpec


def deterministic_device(
    config: EngineConfig, spec: ModelSpec, numerics: Numerics, device: torch.device, gpu: Gpu | None
) -> Gpu | None:
    """The GPU, told so where the config asks. ConfigError for a model that it has no such path for."""
    if not config.deterministic or device.type == "cpu":
        return gpu
    if config.lora or config.max_loras:
        raise ConfigError("deterministic: on a GPU a library makes an adapter's products, whose order of "
                          "summing changes with the number of rows; use device cpu, or leave out lora and "
                          "max_loras")
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


def prove_adapter(adapter: Adapter) -> None:
    """Ask the library about an adapter's products on a CPU, one of each shape. CheckpointError where a row
    hangs on its place in a tile, or on the rows beside it."""
    slots = AdapterSlots(1)
    slots.put(1, adapter)
    slots.enter(np.ones(TILE, np.int64), TILE)
    shapes = {(delta.a_KR.shape, tuple((strip.first, strip.b_rn.shape) for strip in delta.strips)): name
              for name, delta in adapter.deltas.items()}
    for name in shapes.values():
        delta, touched = adapter.deltas[name], slots.touched(name)
        assert touched is not None
        width = max(strip.until for strip in delta.strips)

        def product(x_TK: Tensor, touched: Touched = touched, width: int = width) -> Tensor:
            return touched.add_own(torch.zeros(TILE, width), x_TK)

        if hangs_on_place(product, TILE, len(delta.a_KR), torch.float32):
            raise CheckpointError("deterministic: this CPU's library does not give a row of the adapter's "
                                  f"product for {name} the same bits at every place of a tile of {TILE} "
                                  "rows; serve it without deterministic")
