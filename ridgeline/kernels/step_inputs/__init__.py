"""What stands before the layers of a step: its inputs gathered by row, and the angles of its positions.

The door: launches, and knows no model. Safe to capture. Legend: S rows of a step, X places of a row's tables,
R rotary width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.kernels.gpu import power_of_two

_PLACES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A decode step's inputs on the device: ids_S, positions_S, reach_S int64; lens_S int32, tokens with the
    new one, 0 for an idle place; table_SX int32."""

    ids_S: Tensor
    positions_S: Tensor
    reach_S: Tensor
    lens_S: Tensor
    table_SX: Tensor


def gather(staged_4S: Tensor, last_token: Tensor, table: Tensor) -> Gathered:
    """staged_4S int32, contiguous: runner rows; positions, -1 where idle; tokens, -1 for the row's last one;
    reaches. last_token int64, by row. table int32 [rows, X]: every row's pages."""
    from ridgeline.kernels.step_inputs.triton import gather_kernel

    assert staged_4S.is_contiguous() and table.stride(1) == 1
    num, width = staged_4S.shape[1], table.shape[1]
    ids, positions, reach = (torch.empty(num, dtype=torch.int64, device=table.device) for _ in range(3))
    lens = torch.empty(num, dtype=torch.int32, device=table.device)
    out = torch.empty(num, width, dtype=torch.int32, device=table.device)
    gather_kernel[(num,)](
        staged_4S, last_token, table, ids, positions, reach, lens, out, num, width, table.stride(0), _PLACES
    )
    return Gathered(ids_S=ids, positions_S=positions, reach_S=reach, lens_S=lens, table_SX=out)


def angles(positions_T: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """cos_TR and sin_TR, float32 times factor: each pair's twice over, the sines of the first half negated.
    frequencies float32 [R / 2]: radians a position."""
    from ridgeline.kernels.step_inputs.triton import angles_kernel

    num, width = len(positions_T), 2 * len(frequencies)
    padded = power_of_two(width)
    cos, sin = (torch.empty(num, width, device=frequencies.device) for _ in range(2))
    if num:
        angles_kernel[(num,)](positions_T, frequencies, cos, sin, factor, width, padded, num_warps=1)
    return cos, sin
