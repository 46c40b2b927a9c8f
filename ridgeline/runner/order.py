"""Tokens of a row in order: highest logit first, equal ones by the lower id. Block maxima instead of sorting.

A row is cut into blocks of 64 tokens. Their maxima cost one quick pass, and whatever is wanted next (the best
token, the best k, the winner of a race) is found in a few blocks.

Legend: R rows, V vocabulary, B blocks of a row, X the tokens of a block, K tokens wanted.
"""

import torch
from torch import Tensor

BLOCK = 64


def in_blocks(x_RV: Tensor, beyond: float = -torch.inf) -> Tensor:
    """Logits by block, [R, B, X]: a view, or a copy padded with `beyond` where blocks do not fill the
    vocabulary."""
    missing = -x_RV.shape[1] % BLOCK
    if missing:
        x_RV = torch.nn.functional.pad(x_RV, (0, missing), value=beyond)
    return x_RV.unflatten(1, (-1, BLOCK))


def block_ids(block: Tensor) -> Tensor:
    """Token ids of blocks [...]: int64 [..., X]."""
    return block.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=block.device)


def first_of_best(x_RBX: Tensor, max_RB: Tensor) -> Tensor:
    """The lowest token id among a row's highest, int64 [R]; max_RB: the blocks' maxima."""
    best_R1 = max_RB.amax(1, keepdim=True)
    block = _first(max_RB == best_R1)
    row = torch.arange(len(block), device=block.device)
    return block * BLOCK + _first(x_RBX[row, block] == best_R1)


def top(x_RBX: Tensor, max_RB: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """The first `num` tokens in order (num at most the vocabulary): values and int64 ids, both [R, num]."""
    num_rows, num_blocks = max_RB.shape
    wide = min(num + 1, num_blocks * BLOCK)
    if wide * 2 <= num_blocks:
        # the best `wide` tokens lie in the `wide` blocks of the highest maxima
        blocks = max_RB.topk(wide).indices
        row_R1 = torch.arange(num_rows, device=blocks.device).unsqueeze(1)
        values, at = x_RBX[row_R1, blocks].flatten(1).topk(wide)
        ids = block_ids(blocks).flatten(1).gather(1, at)
    else:
        values, ids = x_RBX.flatten(1).topk(wide)
    ids, by_id = ids.sort(dim=1)
    values, by_value = values.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    ids = ids.gather(1, by_value)
    # an equal value beyond the border may belong to a lower id: such rows are sorted whole
    tied = (values[:, num - 1] == values[:, -1]) & (wide > num)
    values, ids = values[:, :num], ids[:, :num]
    if tied.any():
        whole = x_RBX[tied].flatten(1).sort(dim=1, descending=True, stable=True)
        values, ids = values.clone(), ids.clone()
        values[tied], ids[tied] = whole.values[:, :num], whole.indices[:, :num]
    return values, ids


def _first(mask: Tensor) -> Tensor:
    """Index of the first True along the last axis (0 when there is none)."""
    return mask.to(torch.uint8).argmax(-1)
