"""Tiny configs of every family, for reference models of transformers. A case that is called like its family
is the one that stands for it in docs/FAMILIES.md."""

Fields = dict[str, object]
TOLERANCE = 1e-4
GATED_DELTA_TOLERANCE = 1e-3  # the chunked form of float32 itself is that far off
REFERENCES = {
    "llama": "Llama", "mistral": "Mistral", "ministral": "Ministral", "qwen2": "Qwen2", "qwen3": "Qwen3",
    "phi3": "Phi3", "mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe",
    "gemma2": "Gemma2", "gemma3_text": "Gemma3", "gemma4_text": "Gemma4", "gpt_oss": "GptOss",
    "deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3", "mamba2": "Mamba2", "bamba": "Bamba",
    "qwen3_5_text": "Qwen3_5", "mistral_large4": "MistralLarge4",
}  # fmt: skip
GQA: Fields = {"num_key_value_heads": 2}
EXPERTS: Fields = {"num_experts": 8, "num_experts_per_tok": 3}
YARN: Fields = {"factor": 4.0, "original_max_position_embeddings": 64}


def scaled(kind: str, **fields: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **fields}}


def _yarn(mscale: float, mscale_all_dim: float) -> dict[str, object]:
    return scaled("yarn", **YARN, beta_fast=32, beta_slow=1, mscale=mscale, mscale_all_dim=mscale_all_dim)


LLAMA3: Fields = {"rope_parameters": {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}
LONGROPE: Fields = {"original_max_position_embeddings": 64, **scaled(
    "longrope", short_factor=[1.0 + 0.05 * i for i in range(8)],
    long_factor=[2.0 + 0.5 * i for i in range(8)], original_max_position_embeddings=64)}
_DENSE = {
    "llama": ("llama", GQA),
    "llama, as many KV heads": ("llama", {"num_key_value_heads": 4}),
    "llama 3.1": ("llama", GQA | LLAMA3),
    "llama tied, one KV head": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama with biases": ("llama", GQA | {"attention_bias": True, "mlp_bias": True}),
    "llama of wide heads": ("llama", GQA | {"head_dim": 24}),
    "llama linear": ("llama", GQA | scaled("linear", factor=4.0)),
    "llama dynamic": ("llama", GQA | {"max_position_embeddings": 40} | scaled("dynamic", factor=2.0)),
    "llama yarn": ("llama", GQA | scaled("yarn", **YARN)),
    "llama yarn with mscale": (
        "llama", GQA | scaled("yarn", **YARN, mscale=0.7, mscale_all_dim=1.0, beta_fast=16.0, beta_slow=2.0)),
    "llama yarn with factor": (
        "llama", GQA | scaled("yarn", **YARN, attention_factor=1.3, truncate=False)),
    "mistral": ("mistral", GQA | {"sliding_window": 16}),
    "mistral without window": ("mistral", GQA | {"sliding_window": None}),
    "ministral": ("ministral", GQA | {
        "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 16,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]}),
    "qwen2": ("qwen2", GQA),
    "qwen2 with upper windows": ("qwen2", GQA | {
        "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen2 yarn": ("qwen2", GQA | scaled("yarn", **YARN)),
    "qwen3": ("qwen3", GQA | {"head_dim": 16}),
    "qwen3 tied with biases": (
        "qwen3", GQA | {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True}),
    "phi3": ("phi3", {"num_key_value_heads": 4, "sliding_window": 13}),
    "phi3 longrope": ("phi3", GQA | LONGROPE),
}
_MIXTURES = {
    "mixtral": ("mixtral", GQA | {"sliding_window": None} | EXPERTS),
    "qwen2_moe": ("qwen2_moe", GQA | {
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64} | EXPERTS),
    "qwen3_moe": ("qwen3_moe", GQA | {
        "head_dim": 16, "moe_intermediate_size": 32, "norm_topk_prob": True} | EXPERTS),
    "qwen3_moe with a dense layer": ("qwen3_moe", GQA | {
        "head_dim": 16, "moe_intermediate_size": 32, "mlp_only_layers": [1], "num_hidden_layers": 3}
        | EXPERTS),
    "gpt_oss": ("gpt_oss", GQA | {
        "head_dim": 16, "intermediate_size": 64, "num_local_experts": 8, "num_experts_per_tok": 3,
        "sliding_window": 16} | scaled("yarn", **YARN, truncate=False)),
}
_GEMMAS = {
    "gemma2": ("gemma2", GQA | {
        "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0}),
    "gemma2 of another scale": ("gemma2", GQA | {
        "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 16}),
    "gemma3_text": ("gemma3_text", GQA | {
        "num_hidden_layers": 6, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16}),
    "gemma4_text": ("gemma4_text", GQA | {
        "num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 2, "sliding_window": 16, "use_double_wide_mlp": True,
        "layer_types": ["sliding_attention", "full_attention"] * 3, "final_logit_softcapping": 30.0}),
}
_MLA: Fields = {
    "num_hidden_layers": 3, "first_k_dense_replace": 1, "num_key_value_heads": 4,
    "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 3, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}
_LATENT = {
    "deepseek_v2": ("deepseek_v2", _MLA | {
        "q_lora_rank": 32, "n_shared_experts": 2, "topk_method": "group_limited_greedy", "n_group": 4,
        "topk_group": 2, "routed_scaling_factor": 16.0}),
    "deepseek_v2 lite": ("deepseek_v2", _MLA | {
        "q_lora_rank": None, "n_shared_experts": 2, "topk_method": "greedy"} | _yarn(0.707, 0.5)),
    "deepseek_v3": ("deepseek_v3", _MLA | {
        "q_lora_rank": 32, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 2.5} | _yarn(1.0, 1.0)),
}
_LARGE4: Fields = {
    "num_hidden_layers": 4, "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "index_topk": 512, "index_n_heads": 8,
    "index_head_dim": 16}
_SHARED_LATENT = {
    "mistral_large4": ("mistral_large4", _LARGE4 | {
        "num_hidden_layers": 5, "no_rope_layers": [1, 0, 1, 0, 1], "kv_source_layers": [0, 1, 0, 1, 0],
        "indexer_types": ["full", "full", "shared", "full", "shared"], **_yarn(1.0, 1.0)}),
    "mistral_large4 by twos, experts in groups": ("mistral_large4", _LARGE4 | {
        "no_rope_layers": [1] * 4, "kv_source_layers": [0, 0, 2, 2], "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 2.5, "indexer_types": ["full", "shared"] * 2, **scaled("default")}),
}
_MAMBA2: Fields = {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2,
                   "conv_kernel": 4, "chunk_size": 16}
_BAMBA: Fields = GQA | {
    "num_hidden_layers": 4, "attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_head": 16,
    "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 16}
_STATES = {
    "mamba2": ("mamba2", _MAMBA2),
    "mamba2 with biases, tied": (
        "mamba2", _MAMBA2 | {"use_bias": True, "n_groups": 1, "tie_word_embeddings": True}),
    "bamba": ("bamba", _BAMBA),
    "bamba without a convolution's bias": (
        "bamba", _BAMBA | {"mamba_conv_bias": False, "mlp_bias": True, "attention_bias": True}),
    "qwen3_5_text": ("qwen3_5_text", GQA | {
        "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"]}),
}
CASES: dict[str, tuple[str, Fields]] = _DENSE | _MIXTURES | _GEMMAS | _LATENT | _SHARED_LATENT | _STATES


def tolerance(case: str) -> float:
    """Of a logit, from the reference."""
    return GATED_DELTA_TOLERANCE if CASES[case][0] == "qwen3_5_text" else TOLERANCE
