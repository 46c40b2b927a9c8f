"""The table of model families: config -> ModelSpec, ModelSpec -> weight sources."""

from collections.abc import Container, Mapping
from typing import Protocol

from ridgeline.base.errors import ConfigError
from ridgeline.base.table import LazyTable
from ridgeline.models.described.images import WRAPPERS
from ridgeline.models.described.table import DESCRIBED
from ridgeline.models.read import ConfigReader
from ridgeline.models.sources import Source
from ridgeline.spec.model import ModelSpec


class Family(Protocol):
    """One model family: its config fields, layers and tensor names."""

    def spec(self, config: ConfigReader) -> ModelSpec: ...

    def hf_sources(self, spec: ModelSpec) -> dict[str, Source]: ...

    def gguf_sources(self, spec: ModelSpec, stored: Container[str]) -> dict[str, Source]: ...


# model_type -> the module that has its reader; a plan imports the one it needs
FAMILIES: LazyTable[Family] = LazyTable("model family", {
    name: f"ridgeline.models.{place}" for name, place in {
        "llama": "dense:LLAMA", "mistral": "dense:MISTRAL", "ministral": "dense:MINISTRAL",
        "qwen2": "dense:QWEN2", "qwen3": "dense:QWEN3", "phi3": "dense:PHI3", "mixtral": "moe:MIXTRAL",
        "qwen2_moe": "moe:QWEN2_MOE", "qwen3_moe": "moe:QWEN3_MOE", "gemma2": "gemma:GEMMA2",
        "gemma3_text": "gemma:GEMMA3", "gemma4_text": "gemma4:GEMMA4", "gpt_oss": "gpt_oss:GPT_OSS",
        "deepseek_v2": "deepseek:DEEPSEEK_V2", "deepseek_v3": "deepseek:DEEPSEEK_V3",
        "mistral_large4": "mistral_large4:MISTRAL_LARGE4",
        "mamba2": "hybrid:MAMBA2", "bamba": "hybrid:BAMBA", "qwen3_5_text": "hybrid:QWEN35"
    }.items()})
_LEFT_OUT: LazyTable[tuple[str, ...]] = LazyTable(
    "model family with tensors to leave out", {"mistral_large4": "ridgeline.models.mistral_large4:LEFT_OUT"})


def model_spec(config: Mapping[str, object], where: str = "config.json") -> ModelSpec:
    """The model that a config (config.json's fields) describes; `where` names the config in errors.

    ConfigError for a family that we do not have, a field that is unknown, missing or of the wrong kind.
    """
    family = config.get("model_type")
    if not isinstance(family, str):
        raise ConfigError(f"{where}: the field model_type is missing: known are {', '.join(FAMILIES)}")
    if family not in FAMILIES and (family in DESCRIBED or family in WRAPPERS):
        raise ConfigError(f"{where}: {family} models are described for planning, not run yet: what runs is "
                          f"{', '.join(FAMILIES)}")
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
    if quantization and (family, method) != ("gpt_oss", "mxfp4"):
        raise ConfigError(f"{where}: the weights are quantized ({method}), which "
                          "is not read yet: use the unquantized checkpoint or a GGUF file of the model")
    return FAMILIES[family].spec(ConfigReader(config, where))


def runs(config: Mapping[str, object]) -> bool:
    """True when the engine runs what the config describes."""
    try:
        model_spec(config)
    except ConfigError:
        return False
    return True


def weight_sources(spec: ModelSpec, *, gguf: bool = False,
                   stored: Container[str] = ()) -> dict[str, Source]:
    """Our full name -> its tensors in safetensors or GGUF, for every weight of the spec.

    stored: the names of a GGUF file's tensors, by which those of one family may differ.
    """
    family = FAMILIES[spec.family]
    return family.gguf_sources(spec, stored) if gguf else family.hf_sources(spec)


def left_out(family: str) -> tuple[str, ...]:
    """Patterns of tensors that a family's checkpoints hold and that it does not need."""
    if family not in _LEFT_OUT:
        return ()
    return _LEFT_OUT[family]
