"""Parts: the products that blocks are made of, over weights of any format. The seam for quantization.

A weight format is a `LinearMethod`. One that can do more in the same pass is also a `FusedMethod`; where it
is not, or where a bias stands between, the unfused twin runs, which is also what a fused method is tested
against.

Legend: T tokens, K input features, N output features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor
from torch.nn import functional

from ridgeline.base.errors import CheckpointError
from ridgeline.blocks.mlp.reference import gated
from ridgeline.blocks.norm_rope.reference import rms_norm
from ridgeline.blocks.parts import Linear, LinearAdd
from ridgeline.blocks.rowwise import rowwise
from ridgeline.kernels.decode_linear import DecodeLinears
from ridgeline.kernels.gpu import Gpu
from ridgeline.nn.apart import ApartMethod
from ridgeline.nn.gpu import GpuMethod
from ridgeline.quant.stack import Stack


@runtime_checkable
class LinearMethod(Protocol):
    """One weight [N, K] in some format.

    Tokens before `prefill_from` must take one numeric path whatever their number, so that a row alone
    equals the row in a batch; those from it on may take another. The result is new memory of x's dtype,
    which the caller may write.
    """

    def apply(self, x_TK: Tensor, prefill_from: int) -> Tensor:
        """x @ W.T, [T, N]."""
        ...


@runtime_checkable
class FusedMethod(LinearMethod, Protocol):
    """A weight whose product takes in what stands around it."""

    def apply_norm(self, x_TK: Tensor, norm_K: Tensor, eps: float, prefill_from: int) -> Tensor:
        """apply(rms_norm(x))."""
        ...

    def gates(self, activation: str) -> bool:
        """True when `apply_gated` can do this activation."""
        ...

    def apply_gated(self, x_TK: Tensor, norm_K: Tensor, eps: float, activation: str,
                    prefill_from: int) -> Tensor:
        """activation(gate) * up of apply_norm's two halves, [T, N / 2]."""
        ...

    def apply_add(self, x_TK: Tensor, residual_TN: Tensor, prefill_from: int) -> Tensor:
        """residual + apply(x); the result may lie in the residual's memory."""
        ...


Weight = Tensor | LinearMethod


@dataclass(frozen=True, slots=True)
class DenseMethod:
    """A weight as a plain float matrix of the activations' dtype."""

    weight_NK: Tensor

    def apply(self, x_TK: Tensor, prefill_from: int) -> Tensor:
        return functional.linear(x_TK, self.weight_NK)


def as_method(weight: Tensor | LinearMethod, linears: DecodeLinears | None = None, *,
              apart: bool = False) -> LinearMethod:
    """linears: what multiplies plain matrices, None for torch; apart: see blocks.parts."""
    if not isinstance(weight, Tensor):
        return weight
    if linears is None and apart:
        return ApartMethod(weight)
    return DenseMethod(weight) if linears is None else GpuMethod(linears, weight)


def with_norm(method: LinearMethod, norm_K: Tensor, eps: float) -> Linear:
    """apply(rms_norm(x)), in one pass where the weight can."""
    if isinstance(method, FusedMethod):
        return lambda x, prefill_from: method.apply_norm(x, norm_K, eps, prefill_from)
    return lambda x, prefill_from: method.apply(rms_norm(x, norm_K, eps), prefill_from)


def with_bias(run: Linear, bias_N: Tensor | None) -> Linear:
    """run(x) + bias; a linear's result is new memory."""
    return run if bias_N is None else lambda x, prefill_from: run(x, prefill_from).add_(bias_N)


class BlockParts:
    """Parts of one block: weights by their full name under `prefix` ("layers.3.attn.")."""

    def __init__(self, weights: Mapping[str, Weight], prefix: str,
                 linears: DecodeLinears | None = None, *, apart: bool = False) -> None:
        """linears: a GPU's, None elsewhere."""
        self.apart = apart
        self._weights = weights
        self._prefix = prefix
        self._linears = linears

    @property
    def gpu(self) -> Gpu | None:
        return None if self._linears is None else self._linears.gpu

    def linear(self, name: str) -> Linear:
        return with_bias(self._method(name).apply, self._bias(name))

    def norm_linear(self, norm: str, name: str, eps: float) -> Linear:
        run = with_norm(self._method(name), self.tensor(f"{norm}.weight"), eps)
        return with_bias(run, self._bias(name))

    def gated_linear(self, norm: str, name: str, eps: float, activation: str) -> Linear:
        norm_K, method, bias = self.tensor(f"{norm}.weight"), self._method(name), self._bias(name)
        if isinstance(method, FusedMethod) and bias is None and method.gates(activation):
            return lambda x, prefill_from: method.apply_gated(x, norm_K, eps, activation, prefill_from)
        plain = self.norm_linear(norm, name, eps)
        gate = rowwise(lambda gate_up_TN: gated(gate_up_TN, activation), self.apart)
        return lambda x, prefill_from: gate(plain(x, prefill_from))

    def linear_add(self, name: str, norm: str | None = None, eps: float = 0.0) -> LinearAdd:
        method, bias = self._method(name), self._bias(name)
        plain = with_bias(method.apply, bias)
        if norm is not None:
            norm_N = self.tensor(f"{norm}.weight")
            return lambda x, residual, first: rms_norm(plain(x, first), norm_N, eps).add_(residual)
        if isinstance(method, FusedMethod) and bias is None:
            return method.apply_add
        return lambda x, residual, prefill_from: plain(x, prefill_from).add_(residual)

    def experts(self, name: str) -> Sequence[Linear]:
        weight, bias_EN = self.weight(f"{name}.weight"), self._bias(name)
        matrices = weight.matrices if isinstance(weight, Stack) else self.tensor(f"{name}.weight").unbind()
        biases = [None] * len(matrices) if bias_EN is None else bias_EN.unbind()
        methods = [as_method(one, apart=self.apart) for one in matrices]
        return [with_bias(method.apply, bias) for method, bias in zip(methods, biases, strict=True)]

    def tensor(self, name: str) -> Tensor:
        weight = self.weight(name)
        if not isinstance(weight, Tensor):
            raise CheckpointError(f"{self._prefix}{name} must be a plain tensor: only matrices can be packed")
        return weight

    def weight(self, name: str) -> Weight:
        """A parameter in whatever format it is held."""
        weight = self._weights.get(self._prefix + name)
        if weight is None:
            raise CheckpointError(f"the weight {self._prefix}{name} is missing: load_weights must give every "
                                  "parameter of the model's spec")
        return weight

    def _method(self, name: str) -> LinearMethod:
        weight = self.weight(f"{name}.weight")
        assert not isinstance(weight, Stack), "a stack of matrices is for experts"
        return as_method(weight, self._linears, apart=self.apart)

    def _bias(self, name: str) -> Tensor | None:
        """The bias, where the model has one; weights hold what the spec lists and nothing more."""
        return self.tensor(f"{name}.bias") if f"{self._prefix}{name}.bias" in self._weights else None
