"""The dense text models of Gemma 4: full layers with wider heads than the windowed ones, and last layers that
read the keys and values of the last layer of their kind before them.

Per-layer inputs (of the small models), experts and keys that serve as values are refused.
"""

from dataclasses import dataclass, replace

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.models.gemma import GEMMA3, Gemma
from ridgeline.models.read import ConfigReader
from ridgeline.models.rope import read_ropes
from ridgeline.spec.block import BlockSpec
from ridgeline.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4(Gemma):
    """See Gemma. wide_head_dim: of full layers, where the config does not say."""

    wide_head_dim: int = 512

    def spec(self, config: ConfigReader) -> ModelSpec:
        """See Dense."""
        for name in ("enable_moe_block", "attention_k_eq_v"):
            config.fixed(name, False)
        if config.integer("hidden_size_per_layer_input", 256):
            raise config.refuse("hidden_size_per_layer_input", "per-layer inputs are not supported: 0 is")
        config.inert(("vocab_size_per_layer_input", "num_experts", "top_k_experts", "moe_intermediate_size",
                      "num_global_key_value_heads"))
        return Gemma.spec(self, config)

    def _attentions(self, config: ConfigReader, num_layers: int, hidden: int,
                    eps: float) -> list[AttentionSpec]:
        windows, wide = self._windows(config, num_layers), self._wide(config, num_layers)
        found = [replace(attention, scale=1.0, v_norm=True,
                         head_dim=wide if window is None else attention.head_dim)
                 for attention, window in zip(Gemma._attentions(self, config, num_layers, hidden, eps),
                                              windows, strict=True)]
        first = self._first_sharing(config, num_layers)
        for i in range(first, num_layers):
            source = next((j for j in reversed(range(first)) if windows[j] == windows[i]), None)
            if source is None:
                raise config.refuse("num_kv_shared_layers", f"layer {i} finds no layer of its kind before "
                                                            f"layer {first}")
            found[i] = replace(found[i], reads_layer=source)
            found[source] = replace(found[source], lends=True)
        return found

    def _feed_forwards(self, config: ConfigReader, num_layers: int, hidden: int,
                       eps: float) -> list[tuple[str, BlockSpec]]:
        """Layers that share may have a feed-forward of twice the width."""
        mlp = replace(self._mlp(config, hidden, eps), scaled=True)
        double = config.flag("use_double_wide_mlp", False)
        wide = replace(mlp, intermediate_size=(2 if double else 1) * mlp.intermediate_size)
        first = self._first_sharing(config, num_layers)
        return [("mlp", mlp if i < first else wide) for i in range(num_layers)]

    def _windows(self, config: ConfigReader, num_layers: int) -> list[int | None]:
        """The last layer has none, whatever the config says."""
        return [*Gemma._windows(self, config, num_layers)[:-1], None]

    def _ropes(self, config: ConfigReader, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
        assert self.thetas is not None
        max_position = config.size("max_position_embeddings", self.max_position)
        return read_ropes(config, head_dim=head_dim, max_position=max_position, thetas=self.thetas,
                          full_head_dim=self._wide(config, config.size("num_hidden_layers")))

    def _first_sharing(self, config: ConfigReader, num_layers: int) -> int:
        return num_layers - config.integer("num_kv_shared_layers", 0)

    def _wide(self, config: ConfigReader, num_layers: int) -> int:
        """Width of a head in full layers; newer configs say it layer by layer."""
        wide, layers = config.size("global_head_dim", self.wide_head_dim), config.section("per_layer_config")
        if layers is None:
            return wide
        full = [i for i, window in enumerate(self._windows(config, num_layers)) if window is None]
        stated = [layers.section(str(i)) for i in full]
        widths = {wide if layer is None else layer.size("head_dim") for layer in stated}
        for reader in (layers, *filter(None, stated)):
            reader.finish()
        if len(widths) > 1:
            raise config.refuse("per_layer_config", "not supported: full layers of one head_dim are")
        return widths.pop()


GEMMA4 = Gemma4(
    name="gemma4_text", max_position=131072, head_dim=256, qkv_bias=None, qk_norm=True, window="all",
    default_window=512, full_every=6, post_norms=True, activation="gelu_tanh",
    activation_field="hidden_activation", tied=True, thetas=(1_000_000.0, 10_000.0),
    hf_names={**GEMMA3.hf_names, "mlp.scale": "layer_scalar"})
