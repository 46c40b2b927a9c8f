"""Qwen3-Next and Qwen3.5 with experts, Nemotron-H and 3, MiniMax-Text-01, Kimi Linear: recurrent layers and
attention."""

from dataclasses import fields

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.feed_forward.spec import FeedForwardSpec
from ridgeline.blocks.kimi_delta.spec import KimiDeltaSpec
from ridgeline.blocks.linear_attention.spec import LinearAttentionSpec
from ridgeline.blocks.mamba2.spec import Mamba2Spec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.moe.spec import MoeSpec, RouterSpec
from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.models.deepseek import DEEPSEEK_V3, DeepSeek, read_groups
from ridgeline.models.hybrid import read_attention, read_delta_mixers
from ridgeline.models.moe import TRAINING
from ridgeline.models.read import Blocks, ConfigReader, Read, read_model
from ridgeline.models.rope import reach
from ridgeline.spec.block import BlockSpec
from ridgeline.spec.model import ModelSpec


def qwen_next(config: ConfigReader) -> ModelSpec:
    """Gated delta and gated attention, mixtures with a shared expert; further-token layers are left out."""
    return read_model(config, "qwen3_next", _qwen_next)


def _qwen_next(config: ConfigReader) -> Read:
    hidden, eps = config.size("hidden_size"), config.number("rms_norm_eps", 1e-6)
    config.inert((*TRAINING, "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"))
    mixers, max_position = read_delta_mixers(config, hidden, eps)
    router = RouterSpec(num_experts=config.size("num_experts"), top_k=config.size("num_experts_per_tok"),
                        renormalize=config.flag("norm_topk_prob", True))
    moe = MoeSpec(hidden_size=hidden, intermediate_size=config.size("moe_intermediate_size"), norm_eps=eps,
                  router=router, shared_size=config.size("shared_expert_intermediate_size"), shared_gate=True)
    dense, step = set(config.numbers("mlp_only_layers")), config.size("decoder_sparse_step", 1)
    inner = config.integer("intermediate_size", 0)
    layers: list[Blocks] = []
    for index, mixer in enumerate(mixers):
        sparse = index not in dense and (index + 1) % step == 0
        mlp = MlpSpec(hidden_size=hidden, intermediate_size=inner, norm_eps=eps)
        layers.append((mixer, ("moe", moe) if sparse else ("mlp", mlp)))
    return layers, hidden, eps, max_position


def nemotron_h(config: ConfigReader) -> ModelSpec:
    """Nemotron-H (arXiv 2504.03624) and Nemotron 3 Nano: one block a layer, by the letters of a pattern."""
    return read_model(config, "nemotron_h", _nemotron_h)


def _nemotron_h(config: ConfigReader) -> Read:
    hidden, eps = config.size("hidden_size"), config.number("layer_norm_epsilon", 1e-5)
    config.inert(("rms_norm_eps", "residual_in_fp32", "rescale_prenorm_residual", "num_logits_to_keep",
                  "expand", "use_mamba_kernels", "chunk_size", "time_step_rank", "time_step_min",
                  "time_step_max", "time_step_floor", "time_step_limit", "mamba_ssm_cache_dtype",
                  "norm_eps", "partial_rotary_factor", "rope_theta", "sliding_window"))
    config.fixed("mlp_hidden_act", "relu2")
    config.fixed("mamba_hidden_act", "silu")
    if config.has("attention_head_dim"):
        config.inert(("head_dim",))
    head_dim = config.size("attention_head_dim" if config.has("attention_head_dim") else "head_dim", 128)
    context, bias = config.size("max_position_embeddings"), config.flag("use_bias", False)
    pattern, num_layers = config.text("hybrid_override_pattern"), config.size("num_hidden_layers")
    if len(pattern) != num_layers or set(pattern) - set("M-*E"):
        raise config.refuse("hybrid_override_pattern",
                            f"needs M, -, * or E for each of {num_layers} layers: others are not known")
    rope_free = AttentionSpec(
        hidden_size=hidden, num_heads=config.size("num_attention_heads"), norm_eps=eps, head_dim=head_dim,
        num_kv_heads=config.size("num_key_value_heads"), rope=_no_rope(context), scale=head_dim**-0.5,
        qkv_bias=config.flag("attention_bias", False), out_bias=config.flag("attention_bias", False))
    kinds: dict[str, tuple[str, BlockSpec]] = {
        "*": ("attn", rope_free),
        "-": ("mlp", FeedForwardSpec(hidden_size=hidden, intermediate_size=config.size("intermediate_size"),
                                     bias=config.flag("mlp_bias", False))),
        "M": ("mamba", Mamba2Spec(
            hidden_size=hidden, num_heads=config.size("mamba_num_heads"), norm_eps=eps,
            head_dim=config.size("mamba_head_dim"), state_size=config.size("ssm_state_size"),
            num_groups=config.size("n_groups"), conv_width=config.size("conv_kernel", 4),
            conv_bias=config.flag("use_conv_bias", True),
            bias=config.flag("mamba_proj_bias", False) or bias))}
    if "E" in pattern:
        kinds["E"] = ("moe", _ungated(config, hidden, eps))
    return [(kinds[letter],) for letter in pattern], hidden, eps, context


def _ungated(config: ConfigReader, hidden: int, eps: float) -> MoeSpec:
    """Experts of two matrices behind DeepSeek-V3's router."""
    config.fixed("moe_latent_size", 0)
    config.fixed("n_shared_experts", 1)
    num_experts, top_k = config.size("n_routed_experts"), config.size("num_experts_per_tok")
    groups, best = read_groups(config, num_experts, top_k, (1, 1))
    router = RouterSpec(num_experts=num_experts, top_k=top_k, score="sigmoid", choice_bias=True,
                        num_groups=groups, top_groups=best, group_best=2,
                        renormalize=config.flag("norm_topk_prob", True),
                        scale=config.number("routed_scaling_factor", 1.0))
    return MoeSpec(hidden_size=hidden, intermediate_size=config.size("moe_intermediate_size"), norm_eps=eps,
                   router=router, activation="relu2", gated=False,
                   shared_size=config.size("moe_shared_expert_intermediate_size"))


def _no_rope(context: int) -> RopeSpec:
    """Attention without positions: no rotary row."""
    return RopeSpec(kind="default", theta=10_000.0, rotary_dim=0, max_position=context)


def minimax(config: ConfigReader) -> ModelSpec:
    """MiniMax-Text-01 (arXiv 2501.08313): seven layers of linear attention for one of softmax attention, all
    with experts."""
    return read_model(config, "minimax", _minimax)


def _minimax(config: ConfigReader) -> Read:
    hidden, eps = config.size("hidden_size"), config.number("rms_norm_eps", 1e-5)
    factors = [(kind, end) for kind in ("full", "linear", "mlp") for end in ("alpha", "beta")]  # of residuals
    config.inert((*TRAINING, "block_size", "postnorm", "rotary_dim", "shared_moe_mode", "sliding_window",
                  *(f"{kind}{'' if kind == 'mlp' else '_attn'}_{end}_factor" for kind, end in factors),
                  *(f"layernorm_{kind}{'' if kind == 'mlp' else '_attention'}_{end}"
                    for kind, end in factors)))
    if any(config.numbers("shared_intermediate_size")):
        raise config.refuse("shared_intermediate_size", "not known: 0 in all layers is")
    num_layers, kinds = config.size("num_hidden_layers"), config.numbers("attn_type_list")
    words = config.texts("layer_types") or tuple(
        "full_attention" if kind == 1 else "linear_attention" if kind == 0 else "?" for kind in kinds)
    if len(words) != num_layers or set(words) - {"full_attention", "linear_attention"}:
        raise config.refuse("layer_types" if config.has("layer_types") else "attn_type_list",
                            f"needs full or linear attention for each of {num_layers} layers")
    attention = read_attention(config, hidden, eps, config.size("max_position_embeddings"), 1.0, gated=False)
    linear = LinearAttentionSpec(hidden_size=hidden, num_heads=attention.num_heads,
                                 head_dim=attention.head_dim)
    router = RouterSpec(num_experts=config.size("num_local_experts"), renormalize=True,
                        top_k=config.size("num_experts_per_tok"))
    moe = MoeSpec(hidden_size=hidden, intermediate_size=config.size("intermediate_size"), norm_eps=eps,
                  router=router)
    config.fixed("hidden_act", "silu")
    layers: list[Blocks] = [
        (("attn", attention) if word == "full_attention" else ("linear", linear), ("moe", moe))
        for word in words]
    return layers, hidden, eps, reach(attention.rope)


# fields of DeepSeek-V3 that Kimi Linear names otherwise
_KIMI_NAMES = {"num_experts_per_token": "num_experts_per_tok", "num_experts": "n_routed_experts",
               "num_shared_experts": "n_shared_experts", "moe_renormalize": "norm_topk_prob",
               "moe_router_activation_func": "scoring_func", "num_expert_group": "n_group",
               "model_max_length": "max_position_embeddings"}


class KimiLinear(DeepSeek):
    """Kimi Linear (arXiv 2510.26692): layers of delta attention and, without positions, of DeepSeek-V3's
    latent attention; all but the first have experts."""

    def spec(self, config: ConfigReader) -> ModelSpec:
        """See DeepSeek."""
        return DeepSeek.spec(self, config.renamed(_KIMI_NAMES))

    def _read(self, config: ConfigReader) -> Read:
        config.fixed("mla_use_nope", True)
        config.inert(("use_grouped_topk",))
        layers, hidden, eps, context = DeepSeek._read(self, config)
        linear = config.section("linear_attn_config")
        if linear is None:
            raise config.refuse("linear_attn_config", "missing: it says which layer is of which attention")
        delta = KimiDeltaSpec(
            hidden_size=hidden, num_heads=linear.size("num_heads"), head_dim=linear.size("head_dim"),
            conv_width=linear.size("short_conv_kernel_size"))
        deltas, whole = (set(linear.numbers(name)) for name in ("kda_layers", "full_attn_layers"))
        linear.finish()
        if deltas & whole or deltas | whole != set(range(1, len(layers) + 1)):
            raise config.refuse("linear_attn_config", f"needs each of {len(layers)} layers in one list")
        return [(("delta", delta), feed) if index in deltas else (attention, feed)
                for index, (attention, feed) in enumerate(layers, 1)], hidden, eps, context


KIMI_LINEAR = KimiLinear(**{field.name: getattr(DEEPSEEK_V3, field.name) for field in fields(DEEPSEEK_V3)}
                         | {"name": "kimi_linear"})
