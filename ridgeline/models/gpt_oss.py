"""GPT-OSS: attention sinks, every second layer windowed, experts with biases and a clamped gate.

Its checkpoints hold the experts as MXFP4 blocks [experts, out, in / 32, 16] with a scale a block; what
transformers writes unquantized is [experts, in, out]. Either way gate and up rows alternate.
"""

from dataclasses import dataclass, replace

from ridgeline.blocks.moe.spec import MoeSpec, RouterSpec
from ridgeline.models.dense import Dense
from ridgeline.models.moe import TRAINING
from ridgeline.models.read import ConfigReader
from ridgeline.models.sources import Source
from ridgeline.spec.block import BlockSpec
from ridgeline.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOss(Dense):
    """See the module."""

    def spec(self, config: ConfigReader) -> ModelSpec:
        """See Dense."""
        stored = config.section("quantization_config")
        config.inert((*TRAINING, "experts_per_token", "initial_context_length"))
        spec = Dense.spec(self, config)
        if stored is None:
            return spec
        stored.inert(("modules_to_not_convert",))
        spec = replace(spec, stored_as=stored.text("quant_method"), stored_plain=(".attn.",))
        stored.finish()
        return spec

    def hf_sources(self, spec: ModelSpec) -> dict[str, Source]:
        """See Dense."""
        found = Dense.hf_sources(self, spec)
        packed = spec.stored_as == "mxfp4"
        for name, param in spec.params():
            *_, block, stem, leaf = name.split(".") if name.count(".") > 2 else ("", "", "")
            if block != "moe" or stem not in ("gate_up", "down"):
                continue
            (part,) = found[name].parts
            part = replace(part, stacked=True, interleaved_heads=int(stem == "gate_up"))
            if leaf == "weight":
                path = part.name
                part = replace(part, name=f"{path}_blocks" if packed else path, transposed=not packed,
                               scales=f"{path}_scales" if packed else "")
            found[name] = Source(parts=(part,), matrices=param.shape[0])
        return found

    def _feed_forwards(self, config: ConfigReader, num_layers: int, hidden: int,
                       eps: float) -> list[tuple[str, BlockSpec]]:
        for name, value in (("attention_bias", True), ("hidden_act", "silu"), ("swiglu_alpha", 1.702),
                            ("swiglu_limit", 7.0)):
            config.fixed(name, value)
        router = RouterSpec(num_experts=config.size("num_local_experts", 128), score="chosen", bias=True,
                            top_k=config.size("num_experts_per_tok", 4))
        moe = MoeSpec(hidden_size=hidden, intermediate_size=config.size("intermediate_size"), norm_eps=eps,
                      router=router, activation="clamped_silu", bias=True)
        return [("moe", moe)] * num_layers


GPT_OSS = GptOss(
    name="gpt_oss", norm_eps=1e-5, max_position=131072, head_dim=64, qkv_bias=True, out_bias=True,
    window="all", default_window=128, full_every=2, sinks=True,
    hf_names={"moe.router": "mlp.router", "moe.gate_up.weight": "mlp.experts.gate_up_proj",
              "moe.gate_up.bias": "mlp.experts.gate_up_proj_bias",
              "moe.down.weight": "mlp.experts.down_proj", "moe.down.bias": "mlp.experts.down_proj_bias"},
    gguf_names={"moe.norm": "post_attention_norm"})
