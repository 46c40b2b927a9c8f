"""DeepSeek-V2 (Lite too) and V3: latent attention, a few dense layers, then mixtures of experts.

Owns their config fields, their layers and their tensor names. The FP8 weights that V3 was published in are
not read.
"""

from collections.abc import Container
from dataclasses import dataclass

from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.moe.spec import MoeSpec, RouterSpec
from ridgeline.blocks.norm_rope.spec import yarn_mscale
from ridgeline.models.names import GGUF, HF, Names, hf_mlp, named_sources
from ridgeline.models.read import INERT, Blocks, ConfigReader, Read, read_model
from ridgeline.models.rope import reach, read_rope
from ridgeline.models.sources import Part, Source
from ridgeline.spec.model import ModelSpec

LATENT_EPS = 1e-6  # of the norms of the latents, whatever the config says of the others
_INERT = INERT | {"head_dim", "qk_head_dim", "num_key_value_heads", "aux_loss_alpha", "seq_aux", "ep_size",
                  "num_nextn_predict_layers", "output_router_logits"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeek:
    """One family; numbers are the defaults of its config class. sigmoid: V3's router, which balances its
    experts by a bias on the choice; else V2's, by the softmax of all."""

    name: str
    max_position: int
    first_dense: int
    shared: int
    routed_scale: float
    sigmoid: bool

    def spec(self, config: ConfigReader) -> ModelSpec:
        """The model that a config describes. ConfigError for fields that we do not have."""
        return read_model(config, self.name, self._read)

    def _read(self, config: ConfigReader) -> Read:
        config.inert(_INERT)
        _fixed(config, hidden_act="silu", mlp_bias=False, attention_bias=False, rope_interleave=True,
               moe_layer_freq=1)
        num_layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
        eps = config.number("rms_norm_eps", 1e-6)
        attention = self._attention(config, hidden, eps)
        mlp = MlpSpec(hidden_size=hidden, intermediate_size=config.size("intermediate_size"), norm_eps=eps)
        moe = self._moe(config, hidden, eps)
        num_dense = config.integer("first_k_dense_replace", self.first_dense)
        layers: list[Blocks] = [(("attn", attention), ("mlp", mlp) if i < num_dense else ("moe", moe))
                                for i in range(num_layers)]
        return layers, hidden, eps, reach(attention.rope)

    def hf_sources(self, spec: ModelSpec) -> dict[str, Source]:
        """Our full names -> tensors of a safetensors checkpoint."""
        return named_sources(spec, _NAMES if _mla(spec, 0).q_rank else {**_NAMES, **_WHOLE_QUERIES})

    def gguf_sources(self, spec: ModelSpec, stored: Container[str]) -> dict[str, Source]:
        """Of a GGUF file; newer ones hold the up-projection as [heads, latent, key] and [heads, value,
        latent]."""
        names = _GGUF_NAMES if _mla(spec, 0).q_rank else {**_GGUF_NAMES, **_GGUF_WHOLE_QUERIES}
        found = named_sources(spec, names)
        for i in range(0 if "blk.0.attn_kv_b.weight" in stored else len(spec.layers)):
            mla = _mla(spec, i)
            keys = Part(name=f"blk.{i}.attn_k_b.weight", rows=mla.nope_dim, stacked=True, transposed=True)
            values = Part(name=f"blk.{i}.attn_v_b.weight", rows=mla.value_dim, stacked=True)
            found[f"layers.{i}.attn.up.weight"] = Source(parts=(keys, values), matrices=mla.num_heads)
        return found

    def _attention(self, config: ConfigReader, hidden: int, eps: float) -> MlaSpec:
        nope, rotary = config.size("qk_nope_head_dim", 128), config.size("qk_rope_head_dim", 64)
        rope = read_rope(config, head_dim=rotary, aliases={},
                         max_position=config.size("max_position_embeddings", self.max_position))
        # what yarn multiplies the scores by, beside its factor on cos and sin
        mscale = yarn_mscale(rope.factor, rope.mscale_all_dim) if rope.mscale_all_dim else 1.0
        return MlaSpec(
            hidden_size=hidden, num_heads=config.size("num_attention_heads"),
            q_rank=config.optional_integer("q_lora_rank", 1536), latent_dim=config.size("kv_lora_rank", 512),
            nope_dim=nope, value_dim=config.size("v_head_dim", 128), norm_eps=eps, latent_eps=LATENT_EPS,
            rope=rope, scale=(nope + rotary) ** -0.5 * mscale**2)

    def _moe(self, config: ConfigReader, hidden: int, eps: float) -> MoeSpec:
        inner = config.size("moe_intermediate_size")
        return MoeSpec(hidden_size=hidden, intermediate_size=inner, norm_eps=eps, router=self._router(config),
                       shared_size=inner * config.integer("n_shared_experts", self.shared))

    def _router(self, config: ConfigReader) -> RouterSpec:
        method = config.text("topk_method", "noaux_tc" if self.sigmoid else "greedy")
        known = ("noaux_tc",) if self.sigmoid else ("greedy", "group_limited_greedy")
        if method not in known:
            raise config.refuse("topk_method", f"not supported in this family: {' or '.join(known)} is")
        _fixed(config, scoring_func="sigmoid" if self.sigmoid else "softmax")
        if not self.sigmoid:
            _fixed(config, norm_topk_prob=False)
        num_experts, top_k = config.size("n_routed_experts"), config.size("num_experts_per_tok")
        groups, best = 1, 1
        if method == "greedy":
            config.inert(("n_group", "topk_group"))
        else:
            groups, best = read_groups(config, num_experts, top_k, (8, 4 if self.sigmoid else 3))
        return RouterSpec(
            num_experts=num_experts, top_k=top_k, score="sigmoid" if self.sigmoid else "softmax",
            choice_bias=self.sigmoid, num_groups=groups, top_groups=best, group_best=2 if self.sigmoid else 1,
            renormalize=self.sigmoid and config.flag("norm_topk_prob", True),
            scale=config.number("routed_scaling_factor", self.routed_scale))


def read_groups(config: ConfigReader, num_experts: int, top_k: int, defaults: tuple[int, int]) -> tuple[
        int, int]:
    """(groups of experts, how many of them are open to a token)."""
    groups, best = config.size("n_group", defaults[0]), config.size("topk_group", defaults[1])
    if num_experts % groups or best > groups:
        raise config.refuse("n_group", f"does not go with {num_experts} experts and topk_group {best}")
    if top_k > num_experts // groups * best:
        raise config.refuse("num_experts_per_tok", "more than the open groups hold")
    return groups, best


def _mla(spec: ModelSpec, layer: int) -> MlaSpec:
    _, attention = spec.layers[layer].blocks[0]
    assert isinstance(attention, MlaSpec)
    return attention


def _fixed(config: ConfigReader, **values: bool | int | str) -> None:
    for name, value in values.items():
        config.fixed(name, value)


_NAMES: Names = {
    **HF, "attn.down": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"), "attn.q": "self_attn.q_b_proj",
    "attn.q_norm": "self_attn.q_a_layernorm", "attn.latent_norm": "self_attn.kv_a_layernorm",
    "attn.up": "self_attn.kv_b_proj", **hf_mlp("moe.shared_", "mlp.shared_experts")}
_GGUF_NAMES: Names = {
    **GGUF, "attn.down": ("attn_q_a", "attn_kv_a_mqa"), "attn.q": "attn_q_b", "attn.q_norm": "attn_q_a_norm",
    "attn.latent_norm": "attn_kv_a_norm", "attn.up": "attn_kv_b"}
_WHOLE_QUERIES: Names = {"attn.down": ("self_attn.q_proj", "self_attn.kv_a_proj_with_mqa")}
_GGUF_WHOLE_QUERIES: Names = {"attn.down": ("attn_q", "attn_kv_a_mqa")}
DEEPSEEK_V2 = DeepSeek(name="deepseek_v2", max_position=2048, first_dense=0, shared=2, routed_scale=1.0,
                       sigmoid=False)
DEEPSEEK_V3 = DeepSeek(name="deepseek_v3", max_position=4096, first_dense=3, shared=1, routed_scale=2.5,
                       sigmoid=True)
