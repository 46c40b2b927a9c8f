"""Products whose rows' bits hang on no other row: every one has the same number of rows.

A library sums in another order at another number of rows, but within one product does the same for each row:
that is no promise of its own, so `unlike` asks it. Legend: T tokens, K input features, N output features.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

ROWS = 8  # few enough that one row costs little more than alone, enough for a prompt to be quick


@dataclass(frozen=True, slots=True)
class ApartMethod:
    """A plain matrix [N, K] as a LinearMethod (see nn/linear) with one path for all tokens."""

    weight_NK: Tensor

    def apply(self, x_TK: Tensor, prefill_from: int) -> Tensor:
        num, weight_KN = len(x_TK), self.weight_NK.t()
        padded_TK = x_TK.contiguous() if num % ROWS == 0 else pad(x_TK, (0, 0, 0, -num % ROWS))
        out_TN = x_TK.new_empty(len(padded_TK), len(self.weight_NK))
        for part, out in zip(padded_TK.split(ROWS), out_TN.split(ROWS), strict=True):
            torch.mm(part, weight_KN, out=out)
        return out_TN[:num]


def unlike(weight_NK: Tensor) -> bool:
    """True where a row of such a product hangs on its place, or on the rows beside it."""
    method = ApartMethod(weight_NK)
    return hangs_on_place(lambda x_RK: method.apply(x_RK, 0), ROWS, weight_NK.shape[1], weight_NK.dtype)


def hangs_on_place(product: Callable[[Tensor], Tensor], rows: int, width: int, dtype: torch.dtype) -> bool:
    """The same of any product [rows, width] -> [rows, N]."""
    random_RK = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    alone_RK = torch.zeros_like(random_RK)
    alone_RK[0] = random_RK[0]
    alone_N = product(alone_RK)[0]
    everywhere_RN = product(random_RK[:1].expand(rows, -1))
    beside_N = product(random_RK)[0]
    return not (torch.equal(everywhere_RN, alone_N.expand(rows, -1)) and torch.equal(beside_N, alone_N))
