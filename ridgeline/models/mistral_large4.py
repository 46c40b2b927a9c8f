"""Mistral Large 4, as text: latent attention in which layers may read the latents of an earlier one, with or
without a position, and mixtures of experts.

Owns its config fields, layers and tensor names. Each token of it attends to index_topk others, which an index
picks; where these are all that there are, the index changes nothing and its tensors are left out, as are
those of the vision encoder and of the head that drafts.
"""

from collections.abc import Container
from dataclasses import dataclass, replace

from ridgeline.base.errors import ConfigError
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.moe.spec import MoeSpec, RouterSpec
from ridgeline.blocks.norm_rope.spec import yarn_mscale
from ridgeline.models.deepseek import read_groups
from ridgeline.models.names import Names, named_sources
from ridgeline.models.read import INERT, Blocks, ConfigReader, Read, read_model
from ridgeline.models.rope import read_rope
from ridgeline.models.sources import Source
from ridgeline.spec.model import ModelSpec

# of the wrapper: what it says of images, and what text_config says too
_WRAPPER = INERT | {
    "vision_config", "image_token_index", "image_token_id", "projector_hidden_act", "vision_feature_layer",
    "multimodal_projector_bias", "spatial_merge_size", "bos_token_id", "eos_token_id", "pad_token_id"}
_INERT = {"head_dim", "qk_head_dim", "num_key_value_heads", "output_router_logits", "index_n_heads",
          "index_head_dim", "indexer_types"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MistralLarge4:
    """One family. See the module."""

    name: str

    def spec(self, config: ConfigReader) -> ModelSpec:
        """The language model of a config. ConfigError for fields that we do not have."""
        text = config.section("text_config")
        if text is None:
            raise config.refuse("text_config", "the language model is missing")
        softcap = text.number("final_logit_softcapping", 30.0)
        spec = read_model(text, self.name, self._read)
        config.fixed("tie_word_embeddings", spec.tied_embeddings)
        config.inert(_WRAPPER)
        dtype = config.text("dtype", config.text("torch_dtype", spec.dtype))
        config.finish()
        return replace(spec, dtype=dtype, logits_softcap=softcap)

    def hf_sources(self, spec: ModelSpec) -> dict[str, Source]:
        """Our full names -> tensors of a safetensors checkpoint."""
        return named_sources(spec, _NAMES)

    def gguf_sources(self, spec: ModelSpec, stored: Container[str]) -> dict[str, Source]:
        """ConfigError: not read."""
        raise ConfigError(f"GGUF files of {self.name} are not read: use its safetensors checkpoint")

    def _read(self, config: ConfigReader) -> Read:
        config.inert(_INERT)
        config.fixed("hidden_act", "silu")
        config.fixed("attention_bias", False)
        num_layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
        eps = config.number("rms_norm_eps", 1e-5)
        attentions = self._attentions(config, num_layers, hidden, eps)
        context = attentions[0].rope.max_position
        if set(config.texts("layer_types")) - {"indexed_attention"}:
            raise config.refuse("layer_types", "not supported in this family: indexed_attention is")
        if config.size("index_topk", 2048) < context:
            raise config.refuse("index_topk", "an index that leaves tokens out is not supported: at least "
                                f"max_position_embeddings = {context} is (lower that in text_config to run "
                                "shorter texts, whose tokens it leaves all in)")
        mlp = MlpSpec(hidden_size=hidden, intermediate_size=config.size("intermediate_size"), norm_eps=eps)
        moe = self._moe(config, hidden, eps)
        dense = config.integer("first_k_dense_replace", 1)
        kinds = config.texts("mlp_layer_types") or ("dense",) * dense + ("sparse",) * (num_layers - dense)
        if len(kinds) != num_layers or set(kinds) - {"dense", "sparse"}:
            raise config.refuse("mlp_layer_types", f"not dense or sparse for each of {num_layers} layers")
        layers: list[Blocks] = [(("attn", attention), ("mlp", mlp) if kind == "dense" else ("moe", moe))
                                for attention, kind in zip(attentions, kinds, strict=True)]
        return layers, hidden, eps, context

    def _attentions(self, config: ConfigReader, num_layers: int, hidden: int, eps: float) -> list[MlaSpec]:
        """A layer without a position has its rotary width in the plain one; what it keeps is narrower, so
        that none with a position can read it."""
        nope, rotary = config.size("qk_nope_head_dim", 64), config.size("qk_rope_head_dim", 64)
        rope = read_rope(config, head_dim=rotary, aliases={},
                         max_position=config.size("max_position_embeddings", 1 << 20))
        mscale = yarn_mscale(rope.factor, rope.mscale_all_dim) if rope.mscale_all_dim else 1.0
        turning = MlaSpec(
            hidden_size=hidden, num_heads=config.size("num_attention_heads"), q_rank=None,
            latent_dim=config.size("kv_lora_rank", 512), nope_dim=nope, norm_eps=eps, latent_eps=eps,
            value_dim=config.size("v_head_dim", 128), rope=rope, scale=(nope + rotary) ** -0.5 * mscale**2,
            scaled_queries=True, learnt_turns=True)
        still = replace(turning, nope_dim=nope + rotary, rope=replace(rope, kind="default", rotary_dim=0),
                        learnt_turns=False)
        turns = config.numbers("no_rope_layers") or [(i + 1) % 4 for i in range(num_layers)]
        sources = [int(source) for source in config.numbers("kv_source_layers")] or list(range(num_layers))
        if len(turns) < num_layers or len(sources) != num_layers:
            short = "no_rope_layers" if len(turns) < num_layers else "kv_source_layers"
            raise config.refuse(short, f"not one for each of {num_layers} layers")
        for i, source in enumerate(sources):
            if not 0 <= source <= i or sources[source] != source or bool(turns[source]) != bool(turns[i]):
                raise config.refuse("kv_source_layers", f"layer {i} cannot read layer {source}: one is "
                                    "supported that is before it, keeps latents and has positions like it")
        return [replace(turning if turns[i] else still, reads_layer=None if source == i else source)
                for i, source in enumerate(sources)]

    def _moe(self, config: ConfigReader, hidden: int, eps: float) -> MoeSpec:
        inner, num_experts = config.size("moe_intermediate_size"), config.size("n_routed_experts")
        top_k = config.size("num_experts_per_tok")
        groups, best = read_groups(config, num_experts, top_k, defaults=(1, 1))
        router = RouterSpec(
            num_experts=num_experts, top_k=top_k, num_groups=groups, top_groups=best, group_best=2,
            renormalize=True, scale=config.number("routed_scaling_factor", 1.0))
        return MoeSpec(hidden_size=hidden, intermediate_size=inner, norm_eps=eps, router=router,
                       shared_size=inner * config.integer("n_shared_experts", 1))


_ATTENTION: Names = {
    "norm": "attention_norm", "down": ("attention.wq", "attention.wkv_a_with_mqa"),
    "q_down": "attention.wq", "latent_norm": "attention.kv_a_norm", "up": "attention.wkv_b",
    "out": "attention.wo", "q_scale": "attention.ssmax_scaling.s", "q_bias": "attention.ssmax_scaling.b",
    "turns": "/lerope.alpha"}
_FEEDS = {"mlp.": "feed_forward", "moe.": "experts.{}", "moe.shared_": "shared_experts"}
_NAMES: Names = {
    "embed": "tok_embeddings", "final_norm": "norm", "head": "output", "layer": "layers.{}",
    "mlp.norm": "ffn_norm", "moe.norm": "ffn_norm", "moe.router": "gate",
    **{f"attn.{ours}": theirs for ours, theirs in _ATTENTION.items()},
    **{f"{ours}gate_up": (f"{theirs}.w1", f"{theirs}.w3") for ours, theirs in _FEEDS.items()},
    **{f"{ours}down": f"{theirs}.w2" for ours, theirs in _FEEDS.items()}}
LEFT_OUT = ("vision_encoder.*", "pre_mm_projector_norm.*", "patch_merger.*", "vision_language_adapter.*",
            "*.indexer.*", "mtp_dspark.*")
MISTRAL_LARGE4 = MistralLarge4(name="mistral_large4")
