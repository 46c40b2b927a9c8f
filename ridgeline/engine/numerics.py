"""Which numbers a model is computed in: activations, cache, and how each weight is held."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.engine.startup import Startup
from ridgeline.kernels.cpu.native import native, why_none
from ridgeline.kernels.gpu import Gpu, open_gpu
from ridgeline.kernels.gpu import why_none as why_no_gpu
from ridgeline.models.checkpoint import Checkpoint
from ridgeline.nn.load import Policy, dense
from ridgeline.quant.format import Packed, Packing
from ridgeline.quant.packed import Packing32
from ridgeline.quant.stack import PackingStack, Stack
from ridgeline.spec.block import ParamSpec

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """name: in reports. policy: how `nn.load` packs each weight."""

    name: str
    activations: torch.dtype
    cache: torch.dtype
    policy: Policy


def choose_device(config: EngineConfig, startup: Startup) -> torch.device:
    """ConfigError for a device that is not there."""
    if config.device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device {config.device!r} is not known: use auto, cpu or cuda")
    there = torch.cuda.is_available()
    if config.device == "cuda" and not there:
        raise ConfigError("device cuda: torch finds no NVIDIA GPU here (its CPU build never does); use cpu")
    if config.device == "cpu" or not there:
        startup.choose("device", "cpu", "as given" if config.device == "cpu" else "torch finds no NVIDIA GPU")
        return torch.device("cpu")
    name = torch.cuda.get_device_name(0)
    startup.choose("device", "cuda", f"{'as given' if config.device == 'cuda' else 'it is there'}: {name}")
    return torch.device("cuda", 0)


def choose_gpu(config: EngineConfig, device: torch.device, startup: Startup) -> Gpu | None:
    """The GPU whose kernels run the model; None on a CPU, and where torch has to do it."""
    if device.type == "cpu":
        return None
    reason = why_no_gpu(device)
    if reason:
        startup.choose("kernels", "torch", f"{reason}: the slow reference path")
        return None
    gpu = open_gpu(device, max_rows=config.max_num_seqs)
    how = "with programmatic launch" if gpu.programmatic else "one after another"
    startup.choose("kernels", "triton", how)
    return gpu


def choose_numerics(
    config: EngineConfig, checkpoint: Checkpoint, startup: Startup, device: torch.device = CPU
) -> Numerics:
    """ConfigError for a dtype, cache dtype or quantization that is not there."""
    if config.quantization is not None:
        raise ConfigError(f"quantization {config.quantization!r} is not there yet: leave it out")
    if config.dtype not in ("auto", *DTYPES):
        raise ConfigError(f"dtype {config.dtype!r} is not known: use auto, {' or '.join(DTYPES)}")
    if config.kv_cache_dtype not in ("auto", *DTYPES):
        raise ConfigError(
            f"kv_cache_dtype {config.kv_cache_dtype!r} is not there: use auto, {' or '.join(DTYPES)}"
        )
    policy, name = None, config.dtype
    if config.dtype != "auto":
        startup.choose("dtype", name, "as given")
    elif device.type == "cuda":
        name = startup.choose("dtype", "bfloat16", "what a GPU's tensor cores multiply")
    else:
        policy = _packed(checkpoint, startup)
        name = "float32" if policy is None else "packed"
    activations = DTYPES.get(name, torch.float32)
    cache = config.kv_cache_dtype
    if cache == "auto":
        cache = "bfloat16" if policy is not None else name
        startup.choose(
            "kv_cache_dtype", cache, "half the bytes" if policy is not None else "that of the activations"
        )
    else:
        startup.choose("kv_cache_dtype", cache, "as given")
    return Numerics(
        name=name, activations=activations, cache=DTYPES[cache], policy=policy or dense(activations)
    )


def _packed(checkpoint: Checkpoint, startup: Startup) -> Policy | None:
    """Quantized matrices stay packed where the C kernels can multiply them; None where none can or is."""
    quantized = {
        name
        for name, source in checkpoint.sources.items()
        if any(part.scales or checkpoint.tensors[part.name].quantized for part in source.parts)
    }
    if not quantized:
        startup.choose("dtype", "float32", "the checkpoint is in plain numbers: exact on every CPU")
        return None
    found = native()
    if found is None:
        startup.choose("dtype", "float32", why_none())
        return None
    startup.choose(
        "dtype", "packed", f"quantized weights stay packed, multiplied by the C kernels ({found.isa})"
    )
    body, plain = Packing32(found, planes=2), dense(torch.float32)

    def policy(name: str, param: ParamSpec) -> Packing[Packed | Stack | Tensor]:
        source = "embed.weight" if name == "head.weight" and name not in checkpoint.sources else name
        if source not in quantized or param.role not in ("linear", "embed"):
            return plain(name, param)
        return PackingStack(body) if checkpoint.sources[source].matrices else body

    return policy
