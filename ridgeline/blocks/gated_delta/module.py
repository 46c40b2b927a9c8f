"""The gated delta-rule block over flat tokens. Owns the order norm, in, convolution, scan, norm, gate, out
and residual; the recurrence and its states are `blocks.state`'s.

Legend: T tokens, H hidden, M value heads, V value width, G key heads, K key width.
"""

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu, softplus

from ridgeline.blocks.gated_delta.spec import GatedDeltaSpec
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.rowwise import rowwise
from ridgeline.blocks.state import StateBlock, StateShape, StateStep
from ridgeline.blocks.step import Step

_UNIT_EPS = 1e-6  # of the unit length that queries and keys are brought to


class GatedDelta(StateBlock):
    """x + out(silu(z) * norm(delta(conv(in(norm(x))))))."""

    def __init__(self, spec: GatedDeltaSpec, parts: Parts) -> None:
        super().__init__(StateShape(
            channels=spec.conv_channels, conv_width=spec.conv_width, heads=spec.num_value_heads,
            key_width=spec.key_dim, value_width=spec.value_dim, apart=parts.apart))
        self._softplus, self._silu, self._sigmoid, self._unit = (
            rowwise(function, parts.apart) for function in (softplus, silu, torch.sigmoid, _unit))
        self._spec = spec
        self._in = parts.norm_linear("norm", "in", spec.norm_eps)
        self._out = parts.linear_add("out")
        self._conv_weight = parts.tensor("conv.weight").float()
        self._dt_bias_M = parts.tensor("dt_bias").float()
        self._rate_M = -parts.tensor("a_log").float().exp()
        self._norm_V = parts.tensor("gated_norm.weight").float()

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        assert isinstance(shared, StateStep)
        spec = self._spec
        qkv_TE, z_TI, b_TM, a_TM = self._in(x_TH, step.num_decodes).float().split(spec.in_rows, 1)
        states = self._states.load(step, shared)
        qkv_TE = states.convolve(qkv_TE, self._conv_weight, None)
        q_TGK, k_TGK, v_TMV = (
            x.unflatten(1, (heads, -1)) for x, heads in zip(
                qkv_TE.split((spec.key_size, spec.key_size, spec.value_size), 1),
                (spec.num_key_heads, spec.num_key_heads, spec.num_value_heads), strict=True))
        g_TM = self._softplus(a_TM + self._dt_bias_M) * self._rate_M
        o_TMV = states.scan(self._unit(q_TGK) * spec.key_dim**-0.5, self._unit(k_TGK), v_TMV, g_TM,
                            self._sigmoid(b_TM))
        o_TMV = rms_norm(o_TMV, (spec.value_dim,), self._norm_V, spec.norm_eps)
        o_TI = o_TMV.flatten(1).mul_(self._silu(z_TI))
        return self._out(o_TI.to(x_TH.dtype), x_TH, step.num_decodes)


def _unit(x_TGK: Tensor) -> Tensor:
    """Length 1 a head."""
    return x_TGK * (x_TGK.square().sum(-1, keepdim=True) + _UNIT_EPS).rsqrt()
