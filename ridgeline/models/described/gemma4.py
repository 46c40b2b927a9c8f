"""Gemma 4 as published: keys that serve as values, experts beside the feed-forward, per-layer inputs."""

from dataclasses import dataclass, fields, replace

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.moe.spec import MoeSpec, RouterSpec
from ridgeline.blocks.per_layer_input.spec import PerLayerInputSpec
from ridgeline.models.gemma import Gemma
from ridgeline.models.gemma4 import GEMMA4, Gemma4
from ridgeline.models.read import ConfigReader
from ridgeline.spec.block import BlockSpec, ParamSpec
from ridgeline.spec.model import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGemma4(Gemma4):
    """See Gemma4, which runs the configs that need none of this."""

    def spec(self, config: ConfigReader) -> ModelSpec:
        """See Dense."""
        more = self._experts(config)
        width, rows = (config.integer(name, default) for name, default in (
            ("hidden_size_per_layer_input", 256), ("vocab_size_per_layer_input", 262144)))
        spec = Gemma.spec(self, config)
        inputs = PerLayerInputSpec(hidden_size=spec.hidden_size, width=width)
        first = replace(inputs, table_rows=rows, table_layers=len(spec.layers))

        def whole(index: int, layer: LayerSpec) -> LayerSpec:
            last = [("inputs", inputs if index else first)] if width else []
            return LayerSpec(blocks=(*layer.blocks, *more, *last))

        return replace(spec, layers=tuple(whole(index, layer) for index, layer in enumerate(spec.layers)))

    def _experts(self, config: ConfigReader) -> list[tuple[str, BlockSpec]]:
        """What stands beside the feed-forward of each layer."""
        hidden, eps = config.size("hidden_size"), config.number("rms_norm_eps", self.norm_eps)
        found: list[tuple[str, BlockSpec]] = []
        if config.flag("enable_moe_block", False):
            router = RouterSpec(num_experts=config.size("num_experts"), top_k=config.size("top_k_experts"),
                                renormalize=True)
            beside = [ParamSpec(name=f"{name}.weight", shape=(hidden,), role="norm")
                      for name in ("post_norm", "sum_norm", "router_scale")]
            expert = ParamSpec(name="expert_scale", shape=(router.num_experts,), role="scalar")
            found.append(("moe", MoeSpec(
                hidden_size=hidden, intermediate_size=config.size("moe_intermediate_size"), norm_eps=eps,
                router=router, activation="gelu_tanh", beside=(*beside, expert))))
        config.inert(("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size"))
        return found

    def _attentions(self, config: ConfigReader, num_layers: int, hidden: int,
                    eps: float) -> list[AttentionSpec]:
        found = Gemma4._attentions(self, config, num_layers, hidden, eps)
        heads = config.optional_integer("num_global_key_value_heads")
        if not config.flag("attention_k_eq_v", False):
            return found
        return [replace(attention, tied_values=True, num_kv_heads=heads or attention.num_kv_heads)
                if window is None else attention
                for attention, window in zip(found, self._windows(config, num_layers), strict=True)]


WHOLE_GEMMA4 = WholeGemma4(**{field.name: getattr(GEMMA4, field.name) for field in fields(GEMMA4)})
