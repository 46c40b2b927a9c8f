"""Each family against its tiny random transformers model: float32, CPU, logits within 1e-4, whole and in
chunks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.oracle.ours import Ours
from tests.oracle.reference import VOCAB, old_spelling, reference_logits, reference_model

TOLERANCE = 1e-4
GQA = {"num_key_value_heads": 2}


def scaled(kind: str, **fields: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **fields}}


LLAMA3 = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
}
LONGROPE = {
    "original_max_position_embeddings": 64,
    **scaled(
        "longrope",
        short_factor=[1.0 + 0.05 * i for i in range(8)],
        long_factor=[2.0 + 0.5 * i for i in range(8)],
        original_max_position_embeddings=64,
    ),
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "llama-2": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "llama-3.1": ("LlamaForCausalLM", GQA | LLAMA3),
    "llama tied, one KV head": ("LlamaForCausalLM", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama with biases": ("LlamaForCausalLM", GQA | {"attention_bias": True, "mlp_bias": True}),
    "llama of wide heads": ("LlamaForCausalLM", GQA | {"head_dim": 24}),
    "llama linear": ("LlamaForCausalLM", GQA | scaled("linear", factor=4.0)),
    "llama dynamic": (
        "LlamaForCausalLM",
        GQA | {"max_position_embeddings": 40} | scaled("dynamic", factor=2.0),
    ),
    "llama yarn": ("LlamaForCausalLM", GQA | scaled("yarn", **YARN)),
    "llama yarn with mscale": (
        "LlamaForCausalLM",
        GQA | scaled("yarn", **YARN, mscale=0.7, mscale_all_dim=1.0, beta_fast=16.0, beta_slow=2.0),
    ),
    "llama yarn with factor": (
        "LlamaForCausalLM",
        GQA | scaled("yarn", **YARN, attention_factor=1.3, truncate=False),
    ),
    "mistral with window": ("MistralForCausalLM", GQA | {"sliding_window": 16}),
    "mistral without window": ("MistralForCausalLM", GQA | {"sliding_window": None}),
    "ministral": (
        "MinistralForCausalLM",
        GQA
        | {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "qwen2": ("Qwen2ForCausalLM", GQA),
    "qwen2 with upper windows": (
        "Qwen2ForCausalLM",
        GQA
        | {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen2 yarn": ("Qwen2ForCausalLM", GQA | scaled("yarn", **YARN)),
    "qwen3": ("Qwen3ForCausalLM", GQA | {"head_dim": 16}),
    "qwen3 tied with biases": (
        "Qwen3ForCausalLM",
        GQA | {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "mixtral": ("MixtralForCausalLM", GQA | {"sliding_window": None, **EXPERTS}),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        GQA | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, **EXPERTS},
    ),
    "qwen3-moe with a dense layer": (
        "Qwen3MoeForCausalLM",
        GQA | {"head_dim": 16, "moe_intermediate_size": 32, "mlp_only_layers": [1], "norm_topk_prob": True}
        | {"num_hidden_layers": 3, **EXPERTS},
    ),
    "gemma 2": (
        "Gemma2ForCausalLM",
        GQA | {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 16}
        | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma 3": (
        "Gemma3ForCausalLM",
        GQA | {"num_hidden_layers": 6, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 16},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        GQA | {"head_dim": 16, "intermediate_size": 64, "num_local_experts": 8, "num_experts_per_tok": 3}
        | {"sliding_window": 16, **scaled("yarn", **YARN, truncate=False)},
    ),
    "phi-3": ("Phi3ForCausalLM", {"num_key_value_heads": 4, "sliding_window": 13}),
    "phi-3 longrope": ("Phi3ForCausalLM", GQA | LONGROPE),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def text(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, VOCAB, length).tolist()


def pieces(length: int, seed: int) -> list[int]:
    """Odd chunks, then single tokens for the last few."""
    random, sizes, left = np.random.default_rng(seed), [], length - 3
    while left > 0:
        sizes.append(min(left, int(random.choice([1, 5, 7, 13]))))
        left -= sizes[-1]
    return [*sizes, 1, 1, 1]


@pytest.mark.parametrize("spelling", ["new", "old"])
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_reference(tmp_path: Path, case: str, spelling: str) -> None:
    """Protects: config, names, rotary embedding, windows, norms and biases of each family, on our own loader,
    modules and paged cache."""
    name, fields = CASES[case]
    if spelling == "old" and "layer_types" in fields:
        pytest.skip("the old spelling has no layer list")
    model = reference_model(name, **fields)
    model.save_pretrained(tmp_path)
    if spelling == "old":
        old_spelling(tmp_path)
    ours = Ours(tmp_path)
    for length in (1, 37, 77):
        want = reference_logits(model, text(length))
        assert want.std() > 0.3
        whole = ours.logits(text(length))
        assert (whole - want).abs().max() < TOLERANCE, length
        if length > 3:
            chunked = ours.logits(text(length), pieces(length, seed=length))
            assert (chunked - want).abs().max() < TOLERANCE, length


def test_sharded_checkpoint(tmp_path: Path) -> None:
    """Protects: a folder of several shards with an index is the same model."""
    model = reference_model("LlamaForCausalLM", **GQA)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    assert (Ours(tmp_path).logits(text(21)) - reference_logits(model, text(21))).abs().max() < TOLERANCE
