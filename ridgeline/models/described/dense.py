"""Falcon, OLMo 2 and MiniMax-M2: attention in every layer, with norms that no module of ours has yet."""

from dataclasses import dataclass, replace

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.feed_forward.spec import FeedForwardSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.moe.spec import MoeSpec, RouterSpec
from ridgeline.models.dense import Dense
from ridgeline.models.moe import TRAINING
from ridgeline.models.read import INERT, ConfigReader
from ridgeline.models.rope import read_rope
from ridgeline.spec.block import BlockSpec, ParamSpec
from ridgeline.spec.model import LayerSpec, ModelSpec

_OTHER_NAMES = (("hidden_size", "n_embed"), ("num_hidden_layers", "n_layer"),
                ("num_attention_heads", "n_head"))


def falcon(config: ConfigReader) -> ModelSpec:
    """Falcon (arXiv 2311.16867, section 4): attention and feed-forward side by side on one LayerNorm (7B) or
    two (40B, 180B), one key head (7B) or eight. Computing them one after the other costs the same."""
    config.inert({*INERT, "apply_residual_connection_post_layernorm", "rope_scaling",
                  "num_ln_in_parallel_attn"})
    for name, value in (("alibi", False), ("parallel_attn", True), ("bias", False), ("activation", "gelu")):
        config.fixed(name, value)
    hidden, num_layers, heads = (config.size(new if config.has(new) else old) for new, old in _OTHER_NAMES)
    grouped = config.flag("new_decoder_architecture", False)
    stated = config.optional_integer("num_kv_heads") or config.optional_integer("n_head_kv")
    shared = config.flag("multi_query", True)
    kv_heads = (stated or heads) if grouped else 1 if shared else heads
    eps, context = config.number("layer_norm_epsilon", 1e-5), config.size("max_position_embeddings", 2048)
    rope = read_rope(config, head_dim=hidden // heads, max_position=context, aliases={})
    attention = AttentionSpec(
        hidden_size=hidden, num_heads=heads, num_kv_heads=kv_heads, head_dim=hidden // heads, norm_eps=eps,
        rope=rope, scale=(hidden // heads) ** -0.5,
        beside=(ParamSpec(name="norm.bias", shape=(hidden,), role="norm"),))
    feed = FeedForwardSpec(hidden_size=hidden, norm="layer" if grouped else "",
                           intermediate_size=config.optional_integer("ffn_hidden_size") or 4 * hidden)
    bos = config.token_ids("bos_token_id")
    spec = ModelSpec(
        family="falcon", hidden_size=hidden, vocab_size=config.size("vocab_size"), norm_eps=eps,
        max_position=context, tied_embeddings=config.flag("tie_word_embeddings", True), final_norm_bias=True,
        layers=(LayerSpec(blocks=(("attn", attention), ("mlp", feed))),) * num_layers,
        dtype=config.text("dtype", config.text("torch_dtype", "bfloat16")),
        bos_token_id=bos[0] if bos else None, eos_token_ids=config.token_ids("eos_token_id"))
    config.finish()
    return spec


def whole_norms(attention: AttentionSpec) -> tuple[ParamSpec, ParamSpec]:
    """Norms of queries and keys over all heads together."""
    return (ParamSpec(name="q_norm.weight", shape=(attention.q_size,), role="norm"),
            ParamSpec(name="k_norm.weight", shape=(attention.kv_size,), role="norm"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Olmo2(Dense):
    """OLMo 2 (arXiv 2501.00656, section 3): norms after the blocks and none before them."""

    def _attentions(self, config: ConfigReader, num_layers: int, hidden: int,
                    eps: float) -> list[AttentionSpec]:
        return [replace(attention, pre_norm=False, beside=whole_norms(attention))
                for attention in Dense._attentions(self, config, num_layers, hidden, eps)]

    def _mlp(self, config: ConfigReader, hidden: int, eps: float) -> MlpSpec:
        return replace(Dense._mlp(self, config, hidden, eps), pre_norm=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniMaxM2(Dense):
    """MiniMax-M2: every layer a mixture of sigmoid scores, queries and keys normed over all heads
    together."""

    def spec(self, config: ConfigReader) -> ModelSpec:
        """See Dense. The layers that predict further tokens are left out."""
        config.inert({*TRAINING, "use_mtp", "mtp_transformer_layers", "num_mtp_modules", "rotary_dim"})
        for name, value in (("use_qk_norm", True), ("qk_norm_type", "per_layer"),
                            ("shared_intermediate_size", 0), ("scoring_func", "sigmoid")):
            config.fixed(name, value)
        if set(config.numbers("attn_type_list")) - {1.0}:
            raise config.refuse("attn_type_list", "not known: 1 in every layer is")
        return Dense.spec(self, config)

    def _attentions(self, config: ConfigReader, num_layers: int, hidden: int,
                    eps: float) -> list[AttentionSpec]:
        return [replace(attention, beside=whole_norms(attention))
                for attention in Dense._attentions(self, config, num_layers, hidden, eps)]

    def _feed_forwards(self, config: ConfigReader, num_layers: int, hidden: int,
                       eps: float) -> list[tuple[str, BlockSpec]]:
        config.fixed("hidden_act", "silu")
        router = RouterSpec(num_experts=config.size("num_local_experts"), score="sigmoid", renormalize=True,
                            top_k=config.size("num_experts_per_tok"),
                            choice_bias=config.flag("use_routing_bias", True))
        moe = MoeSpec(hidden_size=hidden, intermediate_size=config.size("intermediate_size"), norm_eps=eps,
                      router=router)
        return [("moe", moe)] * num_layers


OLMO2 = Olmo2(name="olmo2", norm_eps=1e-5, max_position=2048, qkv_bias=None, post_norms=True)
MINIMAX_M2 = MiniMaxM2(name="minimax_m2", max_position=196608)
