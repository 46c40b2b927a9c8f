"""Gemma 2 and the text model of Gemma 3: norms of 1 + w on both sides of each block, windows between full
layers, which have a rotary embedding of their own in Gemma 3.
"""

from dataclasses import dataclass, replace

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.models.dense import Dense
from ridgeline.models.read import ConfigReader
from ridgeline.models.rope import read_ropes
from ridgeline.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma(Dense):
    """thetas: rotary bases of full and windowed layers, None where all have the same. softcaps: of scores and
    logits, where the config does not say."""

    thetas: tuple[float, float] | None = None
    softcaps: tuple[float | None, float | None] = (None, None)

    def spec(self, config: ConfigReader) -> ModelSpec:
        """See Dense. Embeddings are multiplied by the root of their width."""
        config.inert(("_sliding_window_pattern", "sliding_window_pattern", "cache_implementation",
                      "hidden_act"))
        if config.stated("use_bidirectional_attention") == "vision":
            config.inert(("use_bidirectional_attention",))  # of the tokens of images alone
        else:
            config.fixed("use_bidirectional_attention", False)
        softcap = self._softcap(config, "final_logit_softcapping", self.softcaps[1])
        spec = Dense.spec(self, config)
        return replace(spec, embed_multiplier=spec.hidden_size**0.5, logits_softcap=softcap)

    def _attentions(self, config: ConfigReader, num_layers: int, hidden: int,
                    eps: float) -> list[AttentionSpec]:
        scale = config.number("query_pre_attn_scalar", 256.0) ** -0.5
        softcap = self._softcap(config, "attn_logit_softcapping", self.softcaps[0])
        return [replace(attention, scale=scale, softcap=softcap)
                for attention in Dense._attentions(self, config, num_layers, hidden, eps)]

    def _ropes(self, config: ConfigReader, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
        if self.thetas is None:
            return Dense._ropes(self, config, head_dim)
        max_position = config.size("max_position_embeddings", self.max_position)
        return read_ropes(config, head_dim=head_dim, max_position=max_position, thetas=self.thetas)

    def _softcap(self, config: ConfigReader, name: str, default: float | None) -> float | None:
        """Absent means the family's own; None means none."""
        value = config.optional_number(name)
        return value if config.has(name) else default


GEMMA2 = Gemma(
    name="gemma2", max_position=8192, head_dim=256, qkv_bias=None, window="all", default_window=4096,
    full_every=2, post_norms=True, activation="gelu_tanh", activation_field="hidden_activation", tied=True,
    norm_added=1.0, softcaps=(50.0, 30.0),
    hf_names={"attn.post_norm": "post_attention_layernorm", "mlp.norm": "pre_feedforward_layernorm",
              "mlp.post_norm": "post_feedforward_layernorm"})
GEMMA3 = replace(GEMMA2, name="gemma3_text", max_position=131072, full_every=6, qk_norm=True,
                 thetas=(1_000_000.0, 10_000.0), softcaps=(None, None))
