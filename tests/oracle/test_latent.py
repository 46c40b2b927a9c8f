"""Latent attention against tiny random transformers models: float32, logits within 1e-4, whole, in chunks
and token by token."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.oracle.ours import Ours
from tests.oracle.reference import old_spelling, reference_logits, reference_model
from tests.oracle.test_families import TOLERANCE, pieces, text

SIZES = {"num_hidden_layers": 3, "first_k_dense_replace": 1, "num_key_value_heads": 4,
         "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 3, "kv_lora_rank": 32,
         "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}


def yarn(mscale: float, mscale_all_dim: float) -> dict[str, object]:
    return {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 64, "mscale": mscale, "mscale_all_dim": mscale_all_dim}}


CASES: dict[str, tuple[str, dict[str, object]]] = {
    "deepseek-v2-lite": ("DeepseekV2ForCausalLM", SIZES | {
        "q_lora_rank": None, "n_shared_experts": 2, "topk_method": "greedy", **yarn(0.707, 0.5)}),
    "deepseek-v2": ("DeepseekV2ForCausalLM", SIZES | {
        "q_lora_rank": 24, "n_shared_experts": 2, "topk_method": "group_limited_greedy", "n_group": 4,
        "topk_group": 2, "routed_scaling_factor": 16.0}),
    "deepseek-v3": ("DeepseekV3ForCausalLM", SIZES | {
        "q_lora_rank": 24, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 2.5, **yarn(1.0, 1.0)}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_reference(tmp_path: Path, case: str) -> None:
    """Protects: both roads of latent attention, its names and row order, yarn's factors, all routers."""
    torch.set_num_threads(1)
    name, fields = CASES[case]
    model = reference_model(name, **fields)
    model.save_pretrained(tmp_path)
    if name == "DeepseekV3ForCausalLM":  # as published: with a layer that predicts the token after the next
        file = tmp_path / "model.safetensors"
        save_file(load_file(file) | {"model.layers.3.eh_proj.weight": torch.zeros(64, 128)}, file)
    if "rope_parameters" in fields:
        old_spelling(tmp_path)
    ours, texts = Ours(tmp_path), [text(length) for length in (37, 77)]
    wants = [reference_logits(model, ids) for ids in texts]
    for ids, want in zip(texts, wants, strict=True):
        assert want.std() > 0.3
        for chunks in (None, pieces(len(ids), seed=1)):
            assert (ours.logits(ids, chunks) - want).abs().max() < TOLERANCE, chunks
    assert (ours.logits(texts[0], [1] * 37) - wants[0]).abs().max() < TOLERANCE
