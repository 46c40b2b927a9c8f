"""The ends of a step in plain torch: the kernels' twins. Legend: as of the door."""

import torch
from torch import Tensor

from ridgeline.kernels.step_ends import Gathered


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


def greedy_reference(logits_SV: Tensor, rows_S: Tensor, last_token: Tensor, out_2S: Tensor) -> None:
    failed = ~logits_SV.isfinite().all(1)
    best = logits_SV == logits_SV.amax(1, keepdim=True)
    tokens = best.to(torch.uint8).argmax(1).masked_fill(failed, 0)
    out_2S[0], out_2S[1] = tokens, failed
    last_token[rows_S.long()] = tokens
