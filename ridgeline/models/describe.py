"""Config -> ModelSpec for planning: families that run, and families that are described and not run yet.

Reads also what running refuses: the notes of quantized checkpoints, which become `ModelSpec.stored_as`. A
config with a family, an attention type or a field that neither knows is refused.
"""

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.base.errors import ConfigError
from ridgeline.models.described.images import WRAPPERS
from ridgeline.models.described.table import DESCRIBED
from ridgeline.models.families import FAMILIES, model_spec
from ridgeline.models.read import ConfigReader
from ridgeline.spec.model import ModelSpec

_GROUPS = {32: "int4_g32", 128: "int4_g128"}
# what a checkpoint's notes leave alone -> parts of our full names
_PLAIN_PARTS = {"self_attn": ".attn.", "shared_experts": ".moe.shared_", r"mlp\.(gate|up": ".mlp."}
_BY_HAND = "this format of matrices is not known: give the weights' format by hand"


def describe(config: Mapping[str, object], where: str = "config.json") -> ModelSpec:
    """The model that a config describes, whether it runs or not; `where` names the config in errors."""
    family = config.get("model_type")
    if isinstance(family, str) and family in WRAPPERS:
        text, vision = WRAPPERS[family]({k: v for k, v in config.items() if k != "quantization_config"},
                                        where)
        whole = {"quantization_config": config.get("quantization_config"), **text}
        return replace(describe(whole, f"{where}: text_config"), vision=vision)
    quantization = config.get("quantization_config")
    notes = quantization if isinstance(quantization, Mapping) else {}
    stored = _stored_as(ConfigReader(notes, f"{where}: quantization_config")) if notes else ""
    plain = {name: value for name, value in config.items() if name != "quantization_config"}
    if isinstance(family, str) and family in DESCRIBED:
        spec = DESCRIBED[family](ConfigReader(plain, where))
    elif isinstance(family, str) and family not in FAMILIES:
        raise ConfigError(f"{where}: model_type {family} is not known, so its attention would be a guess: "
                          f"known are {', '.join([*FAMILIES, *DESCRIBED])}")
    else:
        spec = model_spec(plain, where)
    ignored = " ".join(map(str, notes.get("ignore") or notes.get("modules_to_not_convert") or ()))
    plain_parts = tuple(ours for theirs, ours in _PLAIN_PARTS.items() if theirs in ignored)
    return replace(spec, stored_as=stored, stored_plain=plain_parts if stored else ())


def _stored_as(notes: ConfigReader) -> str:
    """The format of a quantized checkpoint's matrices, by the names of spec.quant.FORMATS."""
    method = notes.text("quant_method", notes.text("quant_algo", ""))
    if method == "mxfp4":
        return "mxfp4"
    if method == "fp8":
        return "fp8_b128" if notes.numbers("weight_block_size") == (128.0, 128.0) else "fp8"
    if method in ("awq", "gptq") and notes.integer("bits") == 4:
        zero = "_zero" if method == "awq" or not notes.flag("sym", True) else ""
        return _group(notes, notes.integer("group_size")) + zero
    if method == "modelopt":
        algorithm = notes.text("quant_algo")
        if algorithm in ("NVFP4", "FP8"):
            return algorithm.lower()
    if method == "compressed-tensors":
        return _compressed(notes)
    raise notes.refuse("quant_method", _BY_HAND)


def _compressed(notes: ConfigReader) -> str:
    """compressed-tensors: one group of settings for all matrices."""
    groups = notes.section("config_groups")
    group = groups.section("group_0") if groups else None
    weights = group.section("weights") if group else None
    if weights is None:
        raise notes.refuse("config_groups", f"no weights in group_0: {_BY_HAND}")
    kind, bits = weights.text("type"), weights.integer("num_bits")
    size = weights.optional_integer("group_size")
    if kind == "int" and bits == 4 and size:
        return _group(weights, size) + ("" if weights.flag("symmetric", True) else "_zero")
    found = {("float", 8): "fp8", ("int", 8): "int8_row", ("float", 4): "nvfp4"}.get((kind, bits))
    if found is None:
        raise weights.refuse("num_bits", f"of {kind}: {_BY_HAND}")
    return found


def _group(notes: ConfigReader, size: int) -> str:
    if size not in _GROUPS:
        raise notes.refuse("group_size", f"not known: {' or '.join(map(str, _GROUPS))} is")
    return _GROUPS[size]
