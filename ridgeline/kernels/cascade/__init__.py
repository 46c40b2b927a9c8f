"""Shared prefixes in decode attention: rows whose texts begin alike read the keys and values of that part
once, together, instead of each for itself.

The door of a mode of decode attention. A prefix is cut in pieces; a piece's sums for all its rows come from
one program, and whoever merges a row's sums takes them along.
Knows nothing of where prefixes come from.

Legend: S rows, L members of all groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_HEADS = 64  # of a tile: query heads of all its rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Which rows share what, on the device; for a graph, in memory that stays.

    members_L int32: rows, group after group. work int32 [items, 4]: (first member, members, first token, end)
    of a piece; total int32 [1]: items. skip_S int32: tokens of each row that are done so; multiples of
    `piece`, fewer than the row has. most: pieces of the longest prefix. num_heads: that share a KV head.
    """

    members_L: Tensor
    work: Tensor
    total: Tensor
    skip_S: Tensor
    piece: int
    most: int
    num_heads: int


def share(groups: Sequence[tuple[Sequence[int], int]], *, num_rows: int, num_heads: int, piece: int,
          device: torch.device) -> Shared | None:
    """groups: (rows, tokens of the prefix that lies in the same pages of all of them), each row in one group
    at most, tokens fewer than any of its rows has. piece: whole tiles of decode attention. num_heads: as of
    `Shared`. None where no prefix fills a piece."""
    per_item, skip = max(1, _HEADS // num_heads), [0] * num_rows
    members: list[int] = []
    work: list[tuple[int, int, int, int]] = []
    for rows, tokens in groups:
        whole = tokens // piece * piece
        if len(rows) < 2 or not whole:
            continue
        for begin in range(0, len(rows), per_item):
            many = min(per_item, len(rows) - begin)
            work += [(len(members) + begin, many, at, at + piece) for at in range(0, whole, piece)]
        for row in rows:
            assert skip[row] == 0, "a row in one group"
            skip[row] = whole
        members += rows
    if not work:
        return None
    made = [torch.tensor(numbers, dtype=torch.int32, device=device)
            for numbers in (members, work, [len(work)], skip)]
    return Shared(members_L=made[0], work=made[1], total=made[2], skip_S=made[3], piece=piece,
                  most=max(skip) // piece, num_heads=num_heads)


def tile_heads(shared: Shared) -> int:
    """Query heads of a tile, a power of two."""
    heads = max(1, _HEADS // shared.num_heads) * shared.num_heads
    return max(16, 1 << (heads - 1).bit_length())
