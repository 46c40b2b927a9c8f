"""The mixture-of-experts block on a GPU: all experts in two launches, and no choice is known to the host.

Legend: T tokens, K chosen experts, P = T K pairs, H hidden.
"""

import torch
from torch import Tensor

from ridgeline.blocks.mlp.reference import gated
from ridgeline.blocks.moe.module import Moe
from ridgeline.blocks.moe.spec import MoeSpec
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.step import Step
from ridgeline.kernels.experts import deal, multiply
from ridgeline.kernels.gpu import Gpu


class GpuMoe(Moe):
    """As `Moe`, by weights in one plain tensor. Experts that were read are counted on the device, for whoever
    fetches it with the step's results."""

    capturable = True

    def __init__(self, spec: MoeSpec, parts: Parts, gpu: Gpu) -> None:
        super().__init__(spec, parts)
        self._gpu = gpu
        self.expert_edges = torch.zeros(spec.router.num_experts + 1, dtype=torch.int32, device=gpu.device)
        self._weights = parts.tensor("gate_up.weight"), parts.tensor("down.weight")
        names = ("gate_up.bias", "down.bias")
        self._biases = tuple(parts.tensor(name) if spec.bias else None for name in names)

    def _experts(self, h_TH: Tensor, weights_TK: Tensor, experts_TK: Tensor, step: Step) -> Tensor:
        dealt = deal(experts_TK, self._spec.router.num_experts, step.token_lens)
        self.expert_edges = dealt.edges
        (gate_up, down), (gate_up_bias, down_bias) = self._weights, self._biases
        inner = multiply(self._gpu, h_TH, gate_up, dealt, by_token=True, bias_EN=gate_up_bias)
        by_token_PH = multiply(
            self._gpu, gated(inner, self._spec.activation), down, dealt, by_token=False, bias_EN=down_bias,
            factor_P=weights_TK.float().flatten(),
        )  # fmt: skip
        return by_token_PH.view(*experts_TK.shape, -1).sum(1)
