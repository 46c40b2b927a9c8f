"""DeepSeek-V2 (Lite too) and V3: latent attention, dense layers first.

Owns their config fields, their layers and their tensor names. The published FP8 weights of V3 are not read.
"""

from dataclasses import dataclass

from ridgeline.base.errors import ConfigError
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.norm_rope.spec import RopeSpec, yarn_mscale
from ridgeline.models.read import INERT, ConfigReader
from ridgeline.models.rope import reach, read_rope
from ridgeline.models.sources import Part, Source, one, stacked
from ridgeline.spec.model import LayerSpec, ModelSpec

LATENT_EPS = 1e-6  # of the norms of the latents, whatever the config says for the others
_INERT = INERT | {"head_dim", "qk_head_dim", "num_key_value_heads", "aux_loss_alpha", "seq_aux", "ep_size",
                  "num_nextn_predict_layers", "output_router_logits", "router_aux_loss_coef"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeek:
    """One family. q_rank: of the queries' latent, where the config leaves it out."""

    name: str
    max_position: int
    first_dense: int
    q_rank: int | None = 1536

    def spec(self, config: ConfigReader) -> ModelSpec:
        """The model that a config describes. ConfigError for fields that we do not have."""
        config.inert(_INERT)
        num_layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
        eps = config.number("rms_norm_eps", 1e-6)
        attention = self._attention(config, hidden, eps)
        activation = config.text("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise config.refuse("hidden_act", "not supported in this family: silu is")
        if config.flag("mlp_bias", False):
            raise config.refuse("mlp_bias", "not supported in this family: false is")
        mlp = MlpSpec(hidden_size=hidden, intermediate_size=config.size("intermediate_size"), norm_eps=eps)
        layers = tuple(LayerSpec(blocks=(("attn", attention), ("mlp", mlp))) for _ in range(num_layers))
        pad, bos = config.token_ids("pad_token_id"), config.token_ids("bos_token_id")
        spec = ModelSpec(
            family=self.name, hidden_size=hidden, vocab_size=config.size("vocab_size"), norm_eps=eps,
            max_position=reach(attention.rope), tied_embeddings=config.flag("tie_word_embeddings", False),
            layers=layers, dtype=config.text("dtype", config.text("torch_dtype", "bfloat16")),
            bos_token_id=bos[0] if bos else None, eos_token_ids=config.token_ids("eos_token_id"),
            pad_token_id=pad[0] if pad else None)
        config.finish()
        return spec

    def hf_sources(self, spec: ModelSpec) -> dict[str, Source]:
        """Our full names -> tensors of a safetensors checkpoint."""
        found = {"embed.weight": one("model.embed_tokens.weight"), "head.weight": one("lm_head.weight"),
                 "final_norm.weight": one("model.norm.weight")}
        for i, layer in enumerate(spec.layers):
            (_, attention), (_, mlp) = layer.blocks
            assert isinstance(attention, MlaSpec) and isinstance(mlp, MlpSpec)
            ours, theirs = f"layers.{i}", f"model.layers.{i}"
            found |= {f"{ours}.attn.{name}": source
                      for name, source in _attention_sources(attention, f"{theirs}.self_attn").items()}
            found |= {f"{ours}.attn.norm.weight": one(f"{theirs}.input_layernorm.weight"),
                      f"{ours}.mlp.norm.weight": one(f"{theirs}.post_attention_layernorm.weight"),
                      f"{ours}.mlp.gate_up.weight": stacked(
                          [f"{theirs}.mlp.{n}_proj.weight" for n in ("gate", "up")],
                          (mlp.intermediate_size,) * 2),
                      f"{ours}.mlp.down.weight": one(f"{theirs}.mlp.down_proj.weight")}
        return {name: found[name] for name, _ in spec.params()}

    def gguf_sources(self, spec: ModelSpec) -> dict[str, Source]:
        """Not there: a GGUF file of this architecture splits and transposes the up-projection."""
        raise ConfigError(f"GGUF files of {self.name} models are not read yet: use the safetensors folder")

    def _attention(self, config: ConfigReader, hidden: int, eps: float) -> MlaSpec:
        if config.flag("attention_bias", False):
            raise config.refuse("attention_bias", "not supported in this family: false is")
        if not config.flag("rope_interleave", True):
            raise config.refuse("rope_interleave", "not supported: the published weights' true is")
        nope, rotary = config.size("qk_nope_head_dim", 128), config.size("qk_rope_head_dim", 64)
        rope = read_rope(config, head_dim=rotary, aliases={},
                         max_position=config.size("max_position_embeddings", self.max_position))
        return MlaSpec(
            hidden_size=hidden, num_heads=config.size("num_attention_heads"),
            q_rank=config.optional_integer("q_lora_rank", self.q_rank),
            latent_dim=config.size("kv_lora_rank", 512), nope_dim=nope,
            value_dim=config.size("v_head_dim", 128), norm_eps=eps, latent_eps=LATENT_EPS, rope=rope,
            scale=(nope + rotary) ** -0.5 * _mscale(rope) ** 2)


def _mscale(rope: RopeSpec) -> float:
    """What yarn multiplies the softmax scale by, squared, beside its factor on cos and sin."""
    return yarn_mscale(rope.factor, rope.mscale_all_dim) if rope.mscale_all_dim else 1.0


def _attention_sources(spec: MlaSpec, theirs: str) -> dict[str, Source]:
    """The file holds the rotary rows of queries and key as pairs."""
    rotary = spec.rope.rotary_dim
    rows, entry_rows = spec.down_rows
    queries = Part(name=f"{theirs}.q_proj.weight", rows=rows, interleaved_heads=spec.num_heads,
                   rotary_rows=rotary)
    if spec.q_rank is not None:
        queries = Part(name=f"{theirs}.q_a_proj.weight", rows=rows)
    latent = Part(name=f"{theirs}.kv_a_proj_with_mqa.weight", rows=entry_rows, interleaved_heads=1,
                  rotary_rows=rotary)
    return {
        "down.weight": Source(parts=(queries, latent)),
        "latent_norm.weight": one(f"{theirs}.kv_a_layernorm.weight"),
        "q_norm.weight": one(f"{theirs}.q_a_layernorm.weight"),
        "q.weight": Source(parts=(Part(name=f"{theirs}.q_b_proj.weight", interleaved_heads=spec.num_heads,
                                       rotary_rows=rotary),)),
        "up.weight": one(f"{theirs}.kv_b_proj.weight"),
        "out.weight": one(f"{theirs}.o_proj.weight")}


DEEPSEEK_V2 = DeepSeek(name="deepseek_v2", max_position=2048, first_dense=0)
DEEPSEEK_V3 = DeepSeek(name="deepseek_v3", max_position=4096, first_dense=3)
