"""Functions of rows of which each row's bits hang on no other row.

Torch's loops take some dozens of numbers at a time and those that are left one by one, by code that rounds
otherwise (silu, sigmoid, softplus), and deal long loops to threads: where that cuts hangs on how many rows
there are. Legend: T rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_WHOLE = 128  # numbers: in whole steps of torch's loops, on every processor and by halves of a row too
_DEALT = 32_768  # numbers from which on a loop is dealt to threads (GRAIN_SIZE of torch's CPU loops)

Rowwise = Callable[[Tensor], Tensor]


def rowwise(function: Rowwise, apart: bool) -> Rowwise:
    """The same function of [T, ...]; apart: over so few rows at a time that nothing is cut inside of one."""
    if not apart:
        return function

    def run(x_TX: Tensor) -> Tensor:
        numbers = x_TX[0].numel()
        rows = max(1, (_DEALT - 1) // numbers) if x_TX.shape[-1] % _WHOLE == 0 else 1
        if len(x_TX) <= rows:
            return function(x_TX)
        return torch.cat([function(part) for part in x_TX.split(rows)])

    return run
