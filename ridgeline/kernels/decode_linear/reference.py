"""The decode linear in plain torch: the kernels' twin, and the path of every machine and size without one.

Legend: M rows, K inputs, N outputs.
"""

from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu


def linear_reference(x_MK: Tensor, weight: Tensor, *, norm_K: Tensor | None = None, eps: float = 0.0,
                     gated: bool = False, bias: Tensor | None = None,
                     residual_MN: Tensor | None = None) -> Tensor:
    """residual + f(norm(x) @ weight.T + bias), [M, N] in x's dtype.

    gated: weight and bias hold gate's N rows, then up's, and f is silu(gate) * up; else f is the identity.
    """
    if norm_K is not None:
        x_MK = rms_norm(x_MK, x_MK.shape[-1:], norm_K, eps)
    y = linear(x_MK, weight, bias)
    if gated:
        gate, up = y.chunk(2, -1)
        y = silu(gate) * up
    return y if residual_MN is None else residual_MN + y
