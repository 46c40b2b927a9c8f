"""Parts: what `nn/build` hands to a block's module, so that blocks know nothing of quantization, LoRA,
sharding.

Legend: T tokens, H hidden, N output features. Each fused part has an unfused twin (its reference).
`prefill_from` is the index of the first token that belongs to a prompt chunk: rows before it always take
the decode path of the weight (one numeric path at every batch size), rows from it on may take the prefill
path. A part's result is new memory, which the caller may write.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ridgeline.kernels.gpu import Gpu


class Linear(Protocol):
    def __call__(self, x_TH: Tensor, prefill_from: int, /) -> Tensor: ...


class LinearAdd(Protocol):
    def __call__(self, x_TH: Tensor, residual_TN: Tensor, prefill_from: int, /) -> Tensor: ...


class Parts(Protocol):
    """A factory bound to one block of one layer; names are the block's ParamSpec names without ".weight"."""

    @property
    def gpu(self) -> Gpu | None:
        """Whose kernels run the block; None where plain torch or the CPU's kernels do."""
        ...

    @property
    def apart(self) -> bool:
        """True where not a bit of a row may hang on the rows beside it: all products come from here, whatever
        else may round by place goes through `blocks.rowwise`, and each token attends by itself."""
        ...

    def linear(self, name: str) -> Linear:
        """x @ W.T (+ bias when the block's params list one)."""
        ...

    def norm_linear(self, norm: str, name: str, eps: float) -> Linear:
        """linear(rms_norm(x))."""
        ...

    def gated_linear(self, norm: str, name: str, eps: float, activation: str) -> Linear:
        """act(gate) * up of norm_linear's two halves."""
        ...

    def linear_add(self, name: str, norm: str | None = None, eps: float = 0.0) -> LinearAdd:
        """residual + linear(x), or + rms_norm of it; under sharding the residual is added once. The residual
        is given up: the result may lie in its memory."""
        ...

    def experts(self, name: str) -> Sequence[Linear]:
        """`linear` of each matrix of a stack [experts, out, in]."""
        ...

    def tensor(self, name: str) -> Tensor:
        """A small parameter as it is (norm weights), by its full local name ("q_norm.weight")."""
        ...
