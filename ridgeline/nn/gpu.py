"""A plain matrix on a GPU as a linear method: what stands around the product goes into its kernel.

Legend: T tokens, K input features, N output features.
"""

from dataclasses import dataclass

from torch import Tensor

from ridgeline.kernels.decode_linear import Call, DecodeLinears


@dataclass(frozen=True, slots=True)
class GpuMethod:
    """A FusedMethod (see nn/linear). out: rows of the results of `apply` and `apply_norm` where they fit, in
    its dtype; what they hold is gone with the next product into it."""

    linears: DecodeLinears
    weight_NK: Tensor
    out: Tensor | None = None

    def apply(self, x_TK: Tensor, prefill_from: int) -> Tensor:
        return self._run(Call(x_MK=x_TK, weight=self.weight_NK, out_MN=self._out(x_TK)), prefill_from)

    def apply_norm(self, x_TK: Tensor, norm_K: Tensor, eps: float, prefill_from: int) -> Tensor:
        out = self._out(x_TK)
        call = Call(x_MK=x_TK, weight=self.weight_NK, norm_K=norm_K, eps=eps, out_MN=out)
        return self._run(call, prefill_from)

    def gates(self, activation: str) -> bool:
        return activation == "silu"

    def apply_gated(
        self, x_TK: Tensor, norm_K: Tensor, eps: float, activation: str, prefill_from: int
    ) -> Tensor:
        assert activation == "silu"
        call = Call(x_MK=x_TK, weight=self.weight_NK, norm_K=norm_K, eps=eps, gated=True)
        return self._run(call, prefill_from)

    def apply_add(self, x_TK: Tensor, residual_TN: Tensor, prefill_from: int) -> Tensor:
        """Into the residual: cuBLAS would copy it first."""
        call = Call(x_MK=x_TK, weight=self.weight_NK, residual_MN=residual_TN, out_MN=residual_TN)
        return self._run(call, prefill_from)

    def _run(self, call: Call, prefill_from: int) -> Tensor:
        """Decodes alone are recorded in a graph; beside chunks, launches cost more than the kernels gain."""
        decodes = prefill_from >= len(call.x_MK) or self.linears.gpu.apart
        return self.linears(call) if decodes else self.linears.by_library(call)

    def _out(self, x_TK: Tensor) -> Tensor | None:
        return self.out[: len(x_TK)] if self.out is not None and len(x_TK) <= len(self.out) else None
