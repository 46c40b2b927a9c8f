"""Experts: routing equals the public routers, sorting by expert equals running every expert, and what is read
is counted."""

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV3Config, MixtralConfig, Qwen2MoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

from ridgeline.blocks.moe.module import Moe
from ridgeline.blocks.moe.reference import every_expert, route
from ridgeline.blocks.moe.spec import MoeSpec, RouterSpec
from ridgeline.blocks.norm_rope.reference import rms_norm
from ridgeline.blocks.parts import Linear
from ridgeline.blocks.step import Step
from ridgeline.nn.linear import BlockParts

HIDDEN, EXPERTS, TOP = 32, 16, 4
SIZES = {"hidden_size": HIDDEN, "num_experts_per_tok": TOP}
GROUPS = {"n_routed_experts": EXPERTS, "n_group": 4, "topk_group": 2}
ROUTERS = {
    "mixtral": (
        MixtralTopKRouter(MixtralConfig(num_local_experts=EXPERTS, **SIZES)),
        RouterSpec(num_experts=EXPERTS, top_k=TOP, renormalize=True)),
    "qwen2": (
        Qwen2MoeTopKRouter(Qwen2MoeConfig(num_experts=EXPERTS, **SIZES)),
        RouterSpec(num_experts=EXPERTS, top_k=TOP)),
    "deepseek v2": (
        DeepseekV2TopkRouter(DeepseekV2Config(topk_method="group_limited_greedy", routed_scaling_factor=16.0,
                                              **SIZES, **GROUPS)),
        RouterSpec(num_experts=EXPERTS, top_k=TOP, num_groups=4, top_groups=2, scale=16.0)),
    "deepseek v3": (
        DeepseekV3TopkRouter(DeepseekV3Config(routed_scaling_factor=2.5, **SIZES, **GROUPS)),
        RouterSpec(num_experts=EXPERTS, top_k=TOP, score="sigmoid", choice_bias=True, num_groups=4,
                   top_groups=2, group_best=2, renormalize=True, scale=2.5)),
}  # fmt: skip


def dense(weights_TK: Tensor, experts_TK: Tensor) -> Tensor:
    """[T, E]: the weight of every expert, whatever the order of the choice."""
    return torch.zeros(len(weights_TK), EXPERTS).scatter_(1, experts_TK, weights_TK)


@pytest.mark.parametrize("name", ROUTERS)
def test_routing_equals_the_public_router(name: str) -> None:
    """Protects: score, choice bias, groups, renormalisation and scale of each kind of router."""
    theirs, spec = ROUTERS[name]
    random = torch.Generator().manual_seed(0)
    x_TH = torch.randn(200, HIDDEN, generator=random)
    theirs.weight.data.copy_(torch.randn(EXPERTS, HIDDEN, generator=random) / HIDDEN**0.5)
    bias_E = torch.randn(EXPERTS, generator=random) if spec.choice_bias else None
    if bias_E is not None:
        theirs.e_score_correction_bias.copy_(bias_E)
    with torch.no_grad():
        _, weights_TK, experts_TK = theirs(x_TH)
        ours = route(torch.nn.functional.linear(x_TH, theirs.weight), spec, bias_E)
    assert (dense(*ours) - dense(weights_TK, experts_TK)).abs().max() < 1e-6


def parts_of(spec: MoeSpec) -> BlockParts:
    random = torch.Generator().manual_seed(1)
    return BlockParts({f"b.{p.name}": torch.randn(p.shape, generator=random) * p.shape[-1] ** -0.5
                       for p in spec.params()}, "b.")


def step_of(num_decodes: int, num_tokens: int) -> Step:
    """The block reads nothing of a step but its number of decodes."""
    none = torch.empty(0)
    return Step(ids_T=none, positions_T=none, reach_T=none, lengths_S=none, starts=np.zeros(0, np.int64),
                counts=np.zeros(0, np.int64), num_decodes=num_decodes, groups=())


@pytest.mark.parametrize("score", ["softmax", "chosen"])
def test_sorted_experts_equal_every_expert_and_tokens_do_not_mix(score: str) -> None:
    """Protects: sorting, scattering back, biases, the gated shared expert, and the count of experts read."""
    router = RouterSpec(num_experts=EXPERTS, top_k=TOP, score=score, bias=True)
    spec = MoeSpec(hidden_size=HIDDEN, intermediate_size=24, norm_eps=1e-6, bias=True, shared_size=40,
                   shared_gate=True, router=router)
    parts = parts_of(spec)
    moe, x_TH = Moe(spec, parts), torch.randn(30, HIDDEN, generator=torch.Generator().manual_seed(2))
    out_TH = moe(x_TH, step_of(7, 30), None)
    h_TH = rms_norm(x_TH, parts.tensor("norm.weight"), 1e-6)
    logits_TE = h_TH @ parts.tensor("router.weight").T + parts.tensor("router.bias")
    weights_TK, experts_TK = route(logits_TE, spec.router)
    up, down = parts.experts("gate_up"), parts.experts("down")

    def expert(number: int) -> Linear:
        def run(x: Tensor, prefill_from: int) -> Tensor:
            gate, value = up[number](x, 0).chunk(2, -1)
            return down[number](torch.nn.functional.silu(gate) * value, 0)
        return run

    gate, value = (h_TH @ parts.tensor("shared_gate_up.weight").T).chunk(2, -1)
    shared = (torch.nn.functional.silu(gate) * value) @ parts.tensor("shared_down.weight").T
    shared = shared * torch.sigmoid(h_TH @ parts.tensor("shared_gate.weight").T)
    naive = x_TH + every_expert(h_TH, [expert(i) for i in range(EXPERTS)], weights_TK, experts_TK) + shared
    assert (out_TH - naive).abs().max() < 1e-5
    assert moe.take_experts_read() == len(experts_TK.unique())
    alone_TH = torch.cat([moe(x_TH[i:i + 1], step_of(1, 1), None) for i in range(30)])
    assert (alone_TH - out_TH).abs().max() < 1e-5
