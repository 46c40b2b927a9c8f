"""Gated activations in plain torch. Legend: T tokens, N rows of the gate and up products together."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from ridgeline.base.table import Table


def _clamped(gate: Tensor, up: Tensor) -> Tensor:
    """(up + 1) * gate * sigmoid(1.702 gate), gate at most 7 and up within 7 (GPT-OSS)."""
    gate = gate.clamp(max=7.0)
    return gate * (gate * 1.702).sigmoid_() * up.clamp(-7.0, 7.0).add_(1.0)


ACTIVATIONS: Table[Callable[[Tensor, Tensor], Tensor]] = Table("activation", {
    "silu": lambda gate, up: functional.silu(gate).mul_(up),
    "gelu": lambda gate, up: functional.gelu(gate).mul_(up),
    "gelu_tanh": lambda gate, up: functional.gelu(gate, approximate="tanh").mul_(up),
    "clamped_silu": _clamped})


def gated(gate_up_TN: Tensor, activation: str) -> Tensor:
    """activation(first half, second half)."""
    gate, up = gate_up_TN.chunk(2, -1)
    return ACTIVATIONS[activation](gate, up)
