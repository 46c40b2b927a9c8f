"""The inputs of a step in plain torch: the kernels' twins. Legend: as of the door."""

import torch
from torch import Tensor

from ridgeline.kernels.step_inputs import Gathered


def gather_reference(staged_4S: Tensor, last_token: Tensor, table: Tensor) -> Gathered:
    rows, positions, tokens, reach = staged_4S.long()
    return Gathered(
        ids_S=torch.where(tokens < 0, last_token[rows], tokens),
        positions_S=positions.clamp(min=0),
        reach_S=reach,
        lens_S=(positions + 1).int(),
        table_SX=table[rows],
    )


def angles_reference(positions_T: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    turned = positions_T.float()[:, None] * frequencies
    cos, sin = turned.cos() * factor, turned.sin() * factor
    return torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)
