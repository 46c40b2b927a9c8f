"""Reference models: tiny random ones of transformers, written as checkpoints for the loader under test.

Weights are redrawn, because the default ones (std 0.02, zero biases) hide most mistakes.
"""

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.oracle.cases import REFERENCES

HIDDEN, INNER, VOCAB = 64, 128, 256
# families whose class takes images too: the fields stand in text_config, an encoder beside them
WRAPPED = {"mistral_large4": {"vision_config": {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "image_size": 28, "patch_size": 14}, "image_token_index": 250}}


def _kind(family: str) -> Any:
    ending = "ForConditionalGeneration" if family in WRAPPED else "ForCausalLM"
    return getattr(transformers, REFERENCES[family] + ending)


def has_reference(family: str) -> bool:
    """False where the transformers at hand is older than the family."""
    try:
        _kind(family)
    except AttributeError:
        return False
    return True


def reference_config(family: str, **fields: object) -> transformers.PreTrainedConfig:
    """A small config of a family's class in transformers; of two layers where the fields do not say."""
    kind = _kind(family).config_class
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": INNER,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if family in WRAPPED:
        dtype = {name: fields.pop(name) for name in ("dtype",) if name in fields}
        return kind(text_config=sizes | fields, **WRAPPED[family], **dtype)
    default = kind()
    return kind(**({key: value for key, value in sizes.items() if hasattr(default, key)} | fields))


def reference_model(family: str, **fields: object) -> transformers.PreTrainedModel:
    """A random float32 model with such a config, eager attention."""
    config = reference_config(family, **fields)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = _kind(family)(config).eval().float()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=random)
            if weight.dim() >= 2:
                weight.copy_(values / math.sqrt(weight.shape[-1]))
            else:
                weight.add_((0.1 if "norm" in key else 0.3) * values)
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=random))
            elif key.endswith("layer_scalar"):
                buffer.copy_(1 + 0.1 * torch.randn(buffer.shape, generator=random))
    return model


def reference_logits(model: transformers.PreTrainedModel, ids: list[int]) -> Tensor:
    """Logits [tokens, vocabulary] of one forward pass over the whole text, without a cache."""
    with torch.no_grad():
        tokens = torch.tensor([ids])
        places = {"position_ids": torch.arange(len(ids))[None]}
        if model.config.model_type == "mamba2":
            places = {}  # it knows none
        # Gemma 4 drops positions unless asked for hidden states, and fails at that without per-layer inputs
        return model(input_ids=tokens, **places, use_cache=False,
                     output_hidden_states=model.config.model_type == "gemma4_text").logits[0]


class _Wide(TorchFunctionMode):
    """Every float32 that is asked for is a float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def exact_logits(model: transformers.PreTrainedModel, ids: list[int]) -> Tensor:
    """Those of `reference_logits` in float64 throughout."""
    with _Wide():
        found = reference_logits(copy.deepcopy(model).double(), ids)
    assert found.dtype == torch.float64
    return found


def old_spelling(folder: Path) -> None:
    """Rewrite config.json as the releases before transformers 5 wrote it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    if "sliding_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    partial = rope.pop("partial_rotary_factor", None)
    if partial is not None:
        config["partial_rotary_factor"] = partial
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    path.write_text(json.dumps(config))


def write_gguf(
    model: transformers.PreTrainedModel,
    path: Path,
    arch: str,
    kind: str,
    metadata: Mapping[str, object] | None = None,
    *,
    split_latents: bool = True,
) -> None:
    """The model as a GGUF file, as llama.cpp's converter writes it, by the names of the gguf library;
    matrices in `kind`, norms and biases in F32. split_latents: as newer files hold DeepSeek's
    up-projection."""
    config, writer = model.config, GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    width = getattr(config, "head_dim", None)
    if width and arch != "deepseek2":
        writer.add_key_length(width)
        writer.add_value_length(width)
    for key, value in (metadata or {}).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
               str: writer.add_string}
        add[type(value)](f"{arch}.{key}", value)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(model))
    for name in ("short", "long") if rope["rope_type"] == "longrope" else ():
        writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))
    if getattr(config, "num_experts_per_tok", 0):
        inner = getattr(config, "moe_intermediate_size", config.intermediate_size)
        writer.add_expert_count(getattr(config, "num_local_experts", 0) or config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(inner)
        if hasattr(config, "shared_expert_intermediate_size"):
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    number = next(number for number, name in MODEL_ARCH_NAMES.items() if name == arch)
    names = get_tensor_name_map(number, config.num_hidden_layers)
    for theirs, array in _tensors(model, arch, split_latents):
        name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert name is not None, theirs
        _add(writer, name, array, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: transformers.PreTrainedModel, arch: str,
             split_latents: bool) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The names that the converter looks up, and what it makes of each tensor before."""
    config = model.config
    for name, tensor in model.state_dict().items():
        array, (path, _, leaf) = tensor.numpy(), name.rpartition(".")
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            yield name, array + 1
        elif arch == "llama" and ("q_proj" in name or "k_proj" in name):  # halves of a head become pairs
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            yield name, array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        elif "gate_up_proj" in leaf:  # of experts
            kind = "bias" if leaf.endswith("bias") else "weight"
            if arch == "gpt-oss":
                array = array.swapaxes(1, 2) if kind == "weight" else array
                parts = array[:, ::2], array[:, 1::2]
            else:
                parts = np.split(array, 2, 1)
            for part, projection in zip(parts, ("gate_proj", "up_proj"), strict=True):
                yield f"{path}.{projection}.{kind}", part.copy()
        elif leaf.startswith("down_proj"):
            turned = arch == "gpt-oss" and leaf == "down_proj"
            kind = "bias" if leaf.endswith("bias") else "weight"
            yield f"{path}.down_proj.{kind}", array.swapaxes(1, 2).copy() if turned else array
        elif leaf == "sinks":
            yield f"{name}.weight", array
        elif leaf == "e_score_correction_bias":
            yield f"{path}.e_score_correction.bias", array
        elif "kv_b_proj" in name and split_latents:
            heads = array.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
            keys, values = np.split(heads, [config.qk_nope_head_dim], 1)
            yield name.replace("kv_b", "k_b"), keys.swapaxes(1, 2).copy()
            yield name.replace("kv_b", "v_b"), values.copy()
        else:
            yield name, array


def _add(writer: GGUFWriter, name: str, array: NDArray[np.float32], kind: str) -> None:
    if array.ndim == 1 or kind == "F32" or "gate_inp" in name or name.endswith(".bias"):
        writer.add_tensor(name, array)
    elif kind == "F16" or array.shape[-1] % 32:
        writer.add_tensor(name, array.astype(np.float16))
    else:
        wanted = GGMLQuantizationType[kind]
        writer.add_tensor(name, quantize(array, wanted), raw_dtype=wanted)


def _llama3_factors(model: transformers.PreTrainedModel) -> NDArray[np.float32]:
    """What the scaling divides each frequency by."""
    rope = model.config.rope_parameters
    width = model.config.head_dim
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return (plain / model.model.rotary_emb.inv_freq.double()).float().numpy()
