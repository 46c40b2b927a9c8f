"""Published shapes by name, as configs: what load_format "dummy" and the planner run without any download.

Each is the public config.json of the model, without what does not shape it.
"""

from collections.abc import Mapping

Config = Mapping[str, object]


def _shape(family: str, sizes: tuple[int, ...], *, vocab: int, context: int, theta: float, eps: float,
           bos: int, eos: list[int], tied: bool = False, **more: object) -> Config:
    hidden, inner, layers, heads, kv_heads = sizes
    return {
        "model_type": family, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
        "max_position_embeddings": context, "rope_theta": theta, "rms_norm_eps": eps, "bos_token_id": bos,
        "eos_token_id": eos, "tie_word_embeddings": tied, "hidden_act": "silu", "dtype": "bfloat16", **more}


def _llama2(*sizes: int) -> Config:
    return _shape("llama", sizes, vocab=32000, context=4096, theta=10_000.0, eps=1e-5, bos=1, eos=[2])


def _llama3(*sizes: int) -> Config:
    return _shape("llama", sizes, vocab=128256, context=8192, theta=500_000.0, eps=1e-5, bos=128000,
                  eos=[128001, 128009])


def _llama31(*sizes: int, factor: float = 8.0, tied: bool = False) -> Config:
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
    return _shape("llama", sizes, vocab=128256, context=131072, theta=500_000.0, eps=1e-5, bos=128000,
                  eos=[128001, 128008, 128009], tied=tied, rope_scaling=scaling)


def _smollm2(*sizes: int, theta: float = 100_000.0) -> Config:
    return _shape("llama", sizes, vocab=49152, context=8192, theta=theta, eps=1e-5, bos=1, eos=[2], tied=True,
                  pad_token_id=2)


def _qwen2(*sizes: int, vocab: int = 152064, tied: bool = False) -> Config:
    return _shape("qwen2", sizes, vocab=vocab, context=32768, theta=1_000_000.0, eps=1e-6, bos=151643,
                  eos=[151645, 151643], tied=tied)


def _qwen3(*sizes: int, tied: bool = False) -> Config:
    return _shape("qwen3", sizes, vocab=151936, context=40960, theta=1_000_000.0, eps=1e-6, bos=151643,
                  eos=[151645, 151643], tied=tied, head_dim=128)


def _mistral(*sizes: int, vocab: int, theta: float, window: int | None) -> Config:
    return _shape("mistral", sizes, vocab=vocab, context=32768, theta=theta, eps=1e-5, bos=1, eos=[2],
                  sliding_window=window)


def _phi3(*sizes: int) -> Config:
    return _shape("phi3", sizes, vocab=32064, context=4096, theta=10_000.0, eps=1e-5, bos=1,
                  eos=[32000, 32001, 32007], pad_token_id=32000, sliding_window=2047,
                  original_max_position_embeddings=4096)


def _mixtral(*sizes: int, vocab: int) -> Config:
    return _shape("mixtral", sizes, vocab=vocab, context=65536 if vocab > 32000 else 32768, theta=1_000_000.0,
                  eps=1e-5, bos=1, eos=[2], num_local_experts=8, num_experts_per_tok=2)


def _qwen3_moe(*sizes: int, inner: int) -> Config:
    return _shape("qwen3_moe", sizes, vocab=151936, context=40960, theta=1_000_000.0, eps=1e-6, bos=151643,
                  eos=[151645, 151643], head_dim=128, num_experts=128, num_experts_per_tok=8,
                  moe_intermediate_size=inner, norm_topk_prob=True)


def _gemma3(*sizes: int, scalar: int = 256, head_dim: int = 256, window: int = 1024, context: int = 131072,
            vocab: int = 262208) -> Config:
    config = _shape("gemma3_text", sizes, vocab=vocab, context=context, theta=1_000_000.0, eps=1e-6, bos=2,
                    eos=[1, 106], tied=True, pad_token_id=0, head_dim=head_dim, sliding_window=window,
                    rope_local_base_freq=10_000.0, query_pre_attn_scalar=scalar, sliding_window_pattern=6)
    factor = {"rope_type": "linear", "factor": 8.0} if vocab == 262208 else None
    return {**config, "rope_scaling": factor, "hidden_act": None}


def _gpt_oss(layers: int, experts: int) -> Config:
    scaling = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
               "original_max_position_embeddings": 4096}
    return _shape("gpt_oss", (2880, 2880, layers, 64, 8), vocab=201088, context=131072, theta=150_000.0,
                  eps=1e-5, bos=199998, eos=[200002, 199999, 200012], pad_token_id=199999, head_dim=64,
                  rope_scaling=scaling, num_local_experts=experts, num_experts_per_tok=4, sliding_window=128,
                  attention_bias=True)


def _deepseek(family: str, *sizes: int, experts: tuple[int, int, int, int], dense: int, scale: float,
              mscale: float, q_rank: int | None, vocab: int = 102400, bos: int = 100000, eos: int = 100001,
              **more: object) -> Config:
    """experts: routed, shared, chosen by a token, width of one. dense: layers without them."""
    routed, shared, chosen, inner = experts
    yarn = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": mscale,
            "mscale_all_dim": mscale, "original_max_position_embeddings": 4096}
    plain = _shape(family, sizes, vocab=vocab, context=163840, theta=10_000.0, eps=1e-6, bos=bos, eos=[eos],
                   rope_scaling=yarn, q_lora_rank=q_rank, kv_lora_rank=512, qk_nope_head_dim=128,
                   qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=routed, n_shared_experts=shared,
                   num_experts_per_tok=chosen, moe_intermediate_size=inner, first_k_dense_replace=dense,
                   routed_scaling_factor=scale)
    return {**plain, **more}


SHAPES: Mapping[str, Config] = {
    "llama-2-7b": _llama2(4096, 11008, 32, 32, 32),
    "llama-2-13b": _llama2(5120, 13824, 40, 40, 40),
    "llama-2-70b": _llama2(8192, 28672, 80, 64, 8),
    "llama-3-8b": _llama3(4096, 14336, 32, 32, 8),
    "llama-3-70b": _llama3(8192, 28672, 80, 64, 8),
    "llama-3.1-8b": _llama31(4096, 14336, 32, 32, 8),
    "llama-3.1-70b": _llama31(8192, 28672, 80, 64, 8),
    "llama-3.1-405b": _llama31(16384, 53248, 126, 128, 8),
    "llama-3.2-1b": _llama31(2048, 8192, 16, 32, 8, factor=32.0, tied=True),
    "llama-3.2-3b": _llama31(3072, 8192, 28, 24, 8, factor=32.0, tied=True),
    "llama-3.3-70b": _llama31(8192, 28672, 80, 64, 8),
    "smollm2-135m": _smollm2(576, 1536, 30, 9, 3),
    "smollm2-360m": _smollm2(960, 2560, 32, 15, 5),
    "smollm2-1.7b": _smollm2(2048, 8192, 24, 32, 32, theta=130_000.0),
    "qwen2.5-0.5b": _qwen2(896, 4864, 24, 14, 2, vocab=151936, tied=True),
    "qwen2.5-1.5b": _qwen2(1536, 8960, 28, 12, 2, vocab=151936, tied=True),
    "qwen2.5-3b": _qwen2(2048, 11008, 36, 16, 2, vocab=151936, tied=True),
    "qwen2.5-7b": _qwen2(3584, 18944, 28, 28, 4),
    "qwen2.5-14b": _qwen2(5120, 13824, 48, 40, 8),
    "qwen2.5-32b": _qwen2(5120, 27648, 64, 40, 8),
    "qwen2.5-72b": _qwen2(8192, 29568, 80, 64, 8),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, 8, tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, 8, tied=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, 8, tied=True),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, 8),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40, 8),
    "qwen3-32b": _qwen3(5120, 25600, 64, 64, 8),
    "mistral-7b-v0.1": _mistral(4096, 14336, 32, 32, 8, vocab=32000, theta=10_000.0, window=4096),
    "mistral-7b": _mistral(4096, 14336, 32, 32, 8, vocab=32768, theta=1_000_000.0, window=None),
    "mixtral-8x7b": _mixtral(4096, 14336, 32, 32, 8, vocab=32000),
    "mixtral-8x22b": _mixtral(6144, 16384, 56, 48, 8, vocab=32768),
    "qwen3-30b-a3b": _qwen3_moe(2048, 6144, 48, 32, 4, inner=768),
    "qwen3-235b-a22b": _qwen3_moe(4096, 12288, 94, 64, 4, inner=1536),
    "gemma-3-270m": _gemma3(640, 2048, 18, 4, 1, window=512, context=32768, vocab=262144),
    "gemma-3-1b": _gemma3(1152, 6912, 26, 4, 1, window=512, context=32768, vocab=262144),
    "gemma-3-4b": _gemma3(2560, 10240, 34, 8, 4),
    "gemma-3-12b": _gemma3(3840, 15360, 48, 16, 8),
    "gemma-3-27b": _gemma3(5376, 21504, 62, 32, 16, scalar=168, head_dim=128),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "phi-3-mini": _phi3(3072, 8192, 32, 32, 32),
    "phi-3-medium": _phi3(5120, 17920, 40, 40, 10),
    "deepseek-v2-lite": _deepseek("deepseek_v2", 2048, 10944, 27, 16, 16, experts=(64, 2, 6, 1408), dense=1,
                                  scale=1.0, mscale=0.707, q_rank=None, topk_method="greedy"),
    "deepseek-v2": _deepseek("deepseek_v2", 5120, 12288, 60, 128, 128, experts=(160, 2, 6, 1536), dense=1,
                             scale=16.0, mscale=0.707, q_rank=1536, topk_method="group_limited_greedy",
                             n_group=8, topk_group=3),
    "deepseek-v3": _deepseek("deepseek_v3", 7168, 18432, 61, 128, 128, experts=(256, 1, 8, 2048), dense=3,
                             scale=2.5, mscale=1.0, q_rank=1536, vocab=129280, bos=0, eos=1, n_group=8,
                             topk_group=4, norm_topk_prob=True),
}
