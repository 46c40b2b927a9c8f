"""The Mamba-2 block over flat tokens. Owns the order norm, in, convolution, scan, gated norm, out and
residual; the recurrence and its states are `blocks.state`'s.

Legend: T tokens, H hidden, M heads, P head width, G groups, N state width, I = M P.
"""

from torch import Tensor
from torch.nn.functional import rms_norm, silu, softplus

from ridgeline.blocks.mamba2.spec import Mamba2Spec
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.rowwise import rowwise
from ridgeline.blocks.state import StateBlock, StateShape, StateStep
from ridgeline.blocks.step import Step


class Mamba2(StateBlock):
    """x + out(gated_norm(scan(conv(in(norm(x))))))."""

    def __init__(self, spec: Mamba2Spec, parts: Parts) -> None:
        super().__init__(StateShape(
            channels=spec.conv_channels, conv_width=spec.conv_width, heads=spec.num_heads,
            key_width=spec.state_size, value_width=spec.head_dim, apart=parts.apart))
        self._softplus, self._silu = (rowwise(function, parts.apart) for function in (softplus, silu))
        self._spec = spec
        self._in = parts.norm_linear("norm", "in", spec.norm_eps)
        self._out = parts.linear_add("out")
        self._conv_weight = parts.tensor("conv.weight").float()
        self._conv_bias = parts.tensor("conv.bias").float() if spec.conv_bias else None
        self._dt_bias_M = parts.tensor("dt_bias").float()
        self._rate_M = -parts.tensor("a_log").float().exp()
        self._skip_M1 = parts.tensor("skip").float()[:, None]
        self._norm_GX = parts.tensor("gated_norm.weight").float().unflatten(0, (spec.num_groups, -1))

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        assert isinstance(shared, StateStep)
        spec = self._spec
        z_TI, xbc_TE, dt_TM = self._in(x_TH, step.num_decodes).float().split(
            (spec.inner_size, spec.conv_channels, spec.num_heads), 1)
        states = self._states.load(step, shared)
        xbc_TE = states.convolve(xbc_TE, self._conv_weight, self._conv_bias)
        width = spec.num_groups * spec.state_size
        x_TI, b_TW, c_TW = xbc_TE.split((spec.inner_size, width, width), 1)
        x_TMP = x_TI.unflatten(1, (spec.num_heads, -1))
        b_TGN, c_TGN = (w.unflatten(1, (spec.num_groups, -1)) for w in (b_TW, c_TW))
        dt_TM = self._softplus(dt_TM + self._dt_bias_M)
        y_TMP = states.scan(c_TGN, b_TGN, x_TMP * dt_TM[..., None], dt_TM * self._rate_M)
        y_TI = y_TMP.addcmul_(x_TMP, self._skip_M1).flatten(1).mul_(self._silu(z_TI))
        y_TGX = y_TI.unflatten(1, (spec.num_groups, -1))
        y_TGX = rms_norm(y_TGX, y_TGX.shape[-1:], None, spec.norm_eps) * self._norm_GX
        return self._out(y_TGX.flatten(1).to(x_TH.dtype), x_TH, step.num_decodes)
