"""Protects described models against an implementation: transformers' class of the same config, on the meta
device, has as many parameters. It keeps the biases of routers' choices and Gemma 4's layer scalars as
buffers."""

import pytest
import torch
import transformers

from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.moe.spec import MoeSpec
from ridgeline.models.catalog import find_model
from ridgeline.models.shapes import SHAPES
from ridgeline.spec.model import ModelSpec

CLASSES = {
    "falcon-7b": "Falcon", "falcon-40b": "Falcon", "olmo-2-32b": "Olmo2", "qwen3-next-80b-a3b": "Qwen3Next",
    "qwen3.5-397b-a17b": "Qwen3_5Moe", "qwen3.5-27b": "Qwen3_5", "gemma-2-9b": "Gemma2",
    "gemma-3-27b": "Gemma3",
    "gemma-4-31b": "Gemma4", "gemma-4-26b-a4b": "Gemma4", "gemma-4-e2b": "Gemma4", "gemma-4-e4b": "Gemma4",
    "minimax-m2.5": "MiniMaxM2", "glm-5": "GlmMoeDsa", "deepseek-v3": "DeepseekV3",
    "deepseek-v3.2": "DeepseekV32",
    "nemotron-h-8b": "NemotronH", "nemotron-h-56b": "NemotronH", "bamba-9b": "Bamba", "mamba2-2.7b": "Mamba2",
    "gpt-oss-120b": "GptOss", "qwen2-57b-a14b": "Qwen2Moe", "phi-4-mini": "Phi3", "llama-3.1-405b": "Llama"}


def _buffers(spec: ModelSpec) -> int:
    blocks = [block for layer in spec.layers for _, block in layer.blocks]
    biases = sum(b.router.num_experts for b in blocks if isinstance(b, MoeSpec) and b.router.choice_bias)
    return biases + sum(isinstance(block, MlpSpec) and block.scaled for block in blocks)


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CLASSES)
def test_transformers_counts_the_same(name: str) -> None:
    kind = getattr(transformers, f"{CLASSES[name]}ForCausalLM")
    fields = {key: value for key, value in SHAPES[name].items() if key not in ("model_type", "dtype")}
    if "hybrid_override_pattern" in fields:
        fields.pop("num_hidden_layers")
    window = fields.pop("sliding_window_pattern", None) if CLASSES[name] == "Gemma4" else None
    if CLASSES[name] == "Gemma4":
        num_layers = int(str(fields["num_hidden_layers"]))
        fields["layer_types"] = ["sliding_attention" if (i + 1) % int(str(window or 6)) else "full_attention"
                                 for i in range(num_layers)]
    with torch.device("meta"):
        model = kind(kind.config_class(**fields))
    spec = find_model(name)
    counted = {id(p): p.numel() for p in model.parameters()}  # a tied head once
    assert sum(counted.values()) == spec.num_params - _buffers(spec)
