"""The two ends of a model: token ids to hidden states, and hidden states to logits.

Legend: T tokens, S projected rows, H hidden, V vocabulary as stored.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ridgeline.blocks.norm_rope.reference import rms_norm
from ridgeline.blocks.rowwise import rowwise
from ridgeline.nn.linear import Weight, as_method, with_norm


@runtime_checkable
class RowsMethod(Protocol):
    """A packed [V, H] matrix whose rows can be read one by one."""

    def rows(self, ids_T: Tensor) -> Tensor:
        """[T, H], float. IndexError for an id outside the vocabulary."""
        ...


class Embedding:
    """ids -> rows of the embedding, times the family's multiplier, in the activations' dtype."""

    def __init__(self, weight: Weight, dtype: torch.dtype, multiplier: float) -> None:
        assert isinstance(weight, (Tensor, RowsMethod)), "a packed embedding must give its rows"
        self._weight: Tensor | RowsMethod = weight
        self._dtype = dtype
        self._multiplier = float(torch.tensor(multiplier, dtype=dtype))  # rounded like what it multiplies

    @property
    def on_cpu(self) -> bool:
        return not isinstance(self._weight, Tensor) or self._weight.device.type == "cpu"

    def __call__(self, ids_T: Tensor) -> Tensor:
        if isinstance(self._weight, Tensor):
            rows_TH = torch.nn.functional.embedding(ids_T, self._weight)
        else:
            rows_TH = self._weight.rows(ids_T)
        rows_TH = rows_TH.to(self._dtype)
        return rows_TH if self._multiplier == 1.0 else rows_TH * self._multiplier


class Head:
    """logits = final norm, product with the head's weight (the embedding's when tied), over the divisor,
    capped."""

    def __init__(self, norm_H: Tensor, weight: Weight, eps: float, divisor: float,
                 softcap: float | None = None, *, apart: bool = False) -> None:
        """apart: see blocks.parts."""
        self._project = with_norm(as_method(weight, apart=apart), norm_H, eps)
        self._tanh = rowwise(Tensor.tanh_, apart)
        self._norm_H, self._eps = norm_H, eps
        self._divisor = divisor
        self._softcap = softcap

    def norm(self, x_SH: Tensor) -> Tensor:
        """[S, H]: what is projected."""
        return rms_norm(x_SH, self._norm_H, self._eps)

    def __call__(self, x_SH: Tensor, prefill_from: int) -> Tensor:
        """float32 [S, V]. Rows before prefill_from take the decode path of the weight."""
        logits_SV = self._project(x_SH, prefill_from).float()
        if self._divisor != 1.0:
            logits_SV.div_(self._divisor)
        if self._softcap is not None:
            logits_SV = self._tanh(logits_SV.div_(self._softcap)).mul_(self._softcap)
        return logits_SV
