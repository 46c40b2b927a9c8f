"""Mixtures of experts over ordinary attention: Mixtral, Qwen2-MoE and Qwen3-MoE.

Owns their config fields and tensor names; DeepSeek's routing is a RouterSpec too.
"""

from dataclasses import dataclass

from ridgeline.blocks.moe.spec import MoeSpec, RouterSpec
from ridgeline.models.dense import Dense
from ridgeline.models.read import ConfigReader
from ridgeline.spec.block import BlockSpec

TRAINING = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixtral(Dense):
    """Every layer is a mixture; the chosen weights always sum to one."""

    def _feed_forwards(self, config: ConfigReader, num_layers: int, hidden: int,
                       eps: float) -> list[tuple[str, BlockSpec]]:
        config.inert(TRAINING)
        config.fixed("hidden_act", "silu")
        router = RouterSpec(num_experts=config.size("num_local_experts", 8),
                            top_k=config.size("num_experts_per_tok", 2), renormalize=True)
        moe = MoeSpec(hidden_size=hidden, intermediate_size=config.size("intermediate_size"), norm_eps=eps,
                      router=router)
        return [("moe", moe)] * num_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenMoe(Dense):
    """Every decoder_sparse_step-th layer is a mixture, save for mlp_only_layers. shared: with an expert that
    every token takes."""

    shared: bool = False

    def _feed_forwards(self, config: ConfigReader, num_layers: int, hidden: int,
                       eps: float) -> list[tuple[str, BlockSpec]]:
        config.inert(TRAINING)
        config.fixed("use_sliding_window", False)
        if self.shared:
            config.fixed("qkv_bias", True)
        router = RouterSpec(
            num_experts=config.optional_integer("num_experts") or config.size("num_local_experts"),
            top_k=config.size("num_experts_per_tok"), renormalize=config.flag("norm_topk_prob", False))
        moe = MoeSpec(
            hidden_size=hidden, intermediate_size=config.size("moe_intermediate_size"), norm_eps=eps,
            router=router, shared_gate=self.shared,
            shared_size=config.size("shared_expert_intermediate_size") if self.shared else 0)
        mlp, step = self._mlp(config, hidden, eps), config.size("decoder_sparse_step", 1)
        dense = set(config.numbers("mlp_only_layers"))
        return [("mlp", mlp) if i in dense or (i + 1) % step else ("moe", moe) for i in range(num_layers)]


_MIXTRAL = "block_sparse_moe.experts.{}"
MIXTRAL = Mixtral(
    name="mixtral", norm_eps=1e-5, max_position=131072, window="all", gguf_interleaved=True,
    hf_names={"moe.router": "block_sparse_moe.gate", "moe.gate_up": (f"{_MIXTRAL}.w1", f"{_MIXTRAL}.w3"),
              "moe.down": f"{_MIXTRAL}.w2"})
QWEN2_MOE = QwenMoe(name="qwen2_moe", qkv_bias=True, window="upper", shared=True)
QWEN3_MOE = QwenMoe(name="qwen3_moe", qkv_bias=None, qk_norm=True, window="upper")
