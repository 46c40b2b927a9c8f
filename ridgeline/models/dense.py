"""Dense decoders: Llama 2 and 3 (SmolLM2), Mistral, Ministral, Qwen2, Qwen3, and Phi-3 (fused projections).

Owns their config fields, their layers and their tensor names in safetensors and GGUF.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.models.names import GGUF, HF, Names, named_sources
from ridgeline.models.read import Blocks, ConfigReader, Read, read_model
from ridgeline.models.rope import reach, read_rope
from ridgeline.models.sources import Source
from ridgeline.spec.block import BlockSpec
from ridgeline.spec.model import ModelSpec

_NONE: Mapping[str, str] = MappingProxyType({})
_ALIASES = {"silu": ("swish",), "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """What sets one dense family apart; defaults are those of the family's own config class.

    qkv_bias: None reads attention_bias, for q, k, v and out alike. mlp_bias: None reads mlp_bias. full_every:
    of layers with a window each so many-th has none, where the config does not say. post_norms: what a block
    gives is normed before it is added.
    window: layers with a sliding window when the config does not list them: "all", "upper" (from
    max_window_layers on, when use_sliding_window) or None. hf_names, gguf_names: where the family's tensors
    are called otherwise. norm_added: to the norms of safetensors files. gguf_interleaved: GGUF files hold q
    and k rows as interleaved rotary pairs.
    """

    name: str
    norm_eps: float = 1e-6
    max_position: int = 32768
    head_dim: int | None = None
    qkv_bias: bool | None = False
    mlp_bias: bool | None = False
    qk_norm: bool = False
    window: str | None = None
    default_window: int | None = None
    full_every: int = 0
    out_bias: bool = False
    post_norms: bool = False
    sinks: bool = False
    activation: str = "silu"
    activation_field: str = "hidden_act"
    tied: bool = False
    hf_names: Names = field(default_factory=lambda: _NONE)
    gguf_names: Names = field(default_factory=lambda: _NONE)
    norm_added: float = 0.0
    gguf_interleaved: bool = False
    rope_aliases: Mapping[str, str] = field(default_factory=lambda: _NONE)

    def spec(self, config: ConfigReader) -> ModelSpec:
        """The model that a config describes. ConfigError for fields that we do not have."""
        return read_model(config, self.name, self._read, tied=self.tied)

    def _read(self, config: ConfigReader) -> Read:
        num_layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
        eps = config.number("rms_norm_eps", self.norm_eps)
        attentions = self._attentions(config, num_layers, hidden, eps)
        feeds = self._feed_forwards(config, num_layers, hidden, eps)
        layers: list[Blocks] = [(("attn", attention), feed)
                                for attention, feed in zip(attentions, feeds, strict=True)]
        return layers, hidden, eps, min(reach(attention.rope) for attention in attentions)

    def hf_sources(self, spec: ModelSpec) -> dict[str, Source]:
        """Our full names -> tensors of a safetensors checkpoint."""
        return named_sources(spec, {**HF, **self.hf_names}, norm_added=self.norm_added)

    def gguf_sources(self, spec: ModelSpec, stored: Container[str]) -> dict[str, Source]:
        """Our full names -> tensors of a GGUF file, whose norms are whole."""
        return named_sources(spec, {**GGUF, **self.gguf_names}, interleaved=self.gguf_interleaved)

    def _feed_forwards(self, config: ConfigReader, num_layers: int, hidden: int,
                       eps: float) -> list[tuple[str, BlockSpec]]:
        """What follows the attention in each layer."""
        return [("mlp", self._mlp(config, hidden, eps))] * num_layers

    def _attentions(self, config: ConfigReader, num_layers: int, hidden: int,
                    eps: float) -> list[AttentionSpec]:
        """The attention of each layer. A window that no sequence can outgrow is full attention."""
        num_heads = config.size("num_attention_heads")
        num_kv_heads = config.optional_size("num_key_value_heads") or num_heads
        if num_heads % num_kv_heads:
            raise config.refuse("num_key_value_heads", f"does not divide num_attention_heads = {num_heads}")
        head_dim = config.optional_size("head_dim") or self.head_dim or hidden // num_heads
        bias = config.flag("attention_bias", False) if self.qkv_bias is None else self.qkv_bias
        full, windowed = self._ropes(config, head_dim)
        attention = AttentionSpec(
            hidden_size=hidden, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
            norm_eps=eps, rope=full, scale=head_dim**-0.5, qk_norm=self.qk_norm, qkv_bias=bias,
            out_bias=bias if self.qkv_bias is None else self.out_bias, post_norm=self.post_norms,
            sinks=self.sinks)
        return [attention if window is None else
                replace(attention, rope=windowed, window_tokens=window if window < reach(full) else None)
                for window in self._windows(config, num_layers)]

    def _ropes(self, config: ConfigReader, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
        """Of full and of windowed layers."""
        max_position = config.size("max_position_embeddings", self.max_position)
        rope = read_rope(config, head_dim=head_dim, max_position=max_position, aliases=self.rope_aliases)
        return rope, rope

    def _mlp(self, config: ConfigReader, hidden: int, eps: float) -> MlpSpec:
        activation = config.text(self.activation_field, self.activation)
        if activation not in (self.activation, *_ALIASES.get(self.activation, ())):
            raise config.refuse(self.activation_field,
                                f"not supported in this family: {self.activation} is")
        bias = config.flag("mlp_bias", False) if self.mlp_bias is None else self.mlp_bias
        return MlpSpec(hidden_size=hidden, intermediate_size=config.size("intermediate_size"), norm_eps=eps,
                       bias=bias, activation=self.activation, post_norm=self.post_norms)

    def _windows(self, config: ConfigReader, num_layers: int) -> list[int | None]:
        """The window of each layer in tokens, the query counted."""
        if self.window is None:
            return [None] * num_layers
        size, first = config.optional_integer("sliding_window", self.default_window), 0
        if self.window == "upper":
            first = config.integer("max_window_layers", 28)
            size = size if config.flag("use_sliding_window", False) else None
        kinds = config.texts("layer_types")
        if not kinds:
            every = config.size("sliding_window_pattern", self.full_every) if self.full_every else 0
            return [size if i >= first and not (every and (i + 1) % every == 0) else None
                    for i in range(num_layers)]
        if len(kinds) != num_layers:
            raise config.refuse("layer_types", f"{len(kinds)} entries for {num_layers} layers")
        known = {"full_attention"} if size is None else {"full_attention", "sliding_attention"}
        if not known.issuperset(kinds):
            raise config.refuse("layer_types", f"with window {size} it may hold {sorted(known)} only")
        return [size if kind == "sliding_attention" else None for kind in kinds]


LLAMA = Dense(name="llama", max_position=2048, qkv_bias=None, mlp_bias=None, gguf_interleaved=True)
MISTRAL = Dense(name="mistral", max_position=131072, window="all", default_window=4096, gguf_interleaved=True)
MINISTRAL = replace(MISTRAL, name="ministral")
QWEN2 = Dense(name="qwen2", qkv_bias=True, window="upper", default_window=4096)
QWEN3 = Dense(name="qwen3", head_dim=128, qkv_bias=None, qk_norm=True, window="upper",
              default_window=4096)
PHI3 = Dense(name="phi3", norm_eps=1e-5, max_position=4096, window="all",
             hf_names={"attn.qkv": "self_attn.qkv_proj", "mlp.gate_up": "mlp.gate_up_proj"},
             gguf_names={"attn.qkv": "attn_qkv", "mlp.gate_up": "ffn_up"},
             rope_aliases={"su": "longrope", "yarn": "longrope"})
