"""The tiles that could be the best of a linear: what `tune` measures. Knows no GPU."""

from ridgeline.kernels.decode_linear.tuning import (
    GUESSED_ROWS,
    MIN_PROGRAMS,
    SHARED_BYTES,
    Choice,
    LinearShape,
    shared_bytes,
)
from ridgeline.kernels.gpu import power_of_two

_SPLIT_PROGRAMS = 6 * MIN_PROGRAMS  # beyond, parts of K only add sums to merge
# (weight rows, inputs, parts of K, stages) of a tile that holds all rows.
_TILES = ((64, 128, 1, 4), (64, 128, 2, 4), (64, 256, 1, 3), (64, 256, 2, 4), (64, 64, 1, 4), (64, 64, 2, 6),
          (64, 64, 4, 4), (128, 64, 1, 4), (128, 64, 4, 4), (128, 128, 1, 3), (32, 128, 2, 4))
# (rows, 0 for all of them; weight rows; inputs; stages; warps) of a tile.
_WIDE = ((128, 128, 64, 4, 8), (128, 128, 64, 3, 8), (128, 64, 128, 3, 4), (128, 64, 64, 4, 4),
         (128, 32, 128, 4, 4), (0, 64, 64, 4, 8), (0, 128, 64, 3, 8), (0, 128, 64, 4, 8), (0, 64, 128, 2, 8),
         (128, 128, 128, 2, 8), (128, 256, 64, 3, 8), (64, 64, 128, 4, 4), (64, 64, 128, 6, 4),
         (64, 128, 128, 4, 4), (64, 64, 64, 4, 4), (64, 32, 128, 6, 4))


def candidates(shape: LinearShape, rows: int) -> list[Choice]:
    """cuBLAS and our tiles, for a bucket of rows."""
    if rows == 1:
        return _one_row(shape)
    found = [Choice(form="torch")]
    if rows <= GUESSED_ROWS:
        found += _narrow(shape, rows)
    return found + (_wide(shape, rows) if rows >= GUESSED_ROWS else [])


def _one_row(shape: LinearShape) -> list[Choice]:
    found: list[Choice] = []
    for block_n in (1, 2, 4, 8):
        for block_k in (256, 512, 1024, 2048, 4096):
            for warps in (2, 4, 8):
                each = block_n * block_k * (2 if shape.gated else 1) // (32 * warps)
                if 8 <= each <= 64 and block_k < 2 * shape.k <= 28 * block_k:
                    found += [Choice(form="gemv", block_n=block_n, block_k=block_k, warps=warps, trigger=when)
                              for when in ("end", "loop", "start")]
    return found


def _narrow(shape: LinearShape, rows: int) -> list[Choice]:
    """All rows in a tile."""
    found: list[Choice] = []
    for form in ("dot", "tma"):
        for block_n, block_k, split, stages in _TILES:
            choice = Choice(form=form, block_n=block_n, block_k=block_k, split=split, stages=stages,
                            norm_apart=shape.norm and (form == "tma" or rows > 16))
            programs = -(-shape.n // block_n) * split
            if (shared_bytes(shape, rows, choice) <= SHARED_BYTES and block_k * split <= shape.k
                    and (split == 1 or programs <= _SPLIT_PROGRAMS) and (form == "dot" or shape.k % 8 == 0)):
                found.append(choice)
    return found


def _wide(shape: LinearShape, rows: int) -> list[Choice]:
    """A tile need not hold all rows: the tensor cores begin to be the limit, and how often each processor
    fetches the same rows."""
    found: list[Choice] = []
    for block_m, block_n, block_k, stages, warps in _WIDE:
        tile_m = block_m or power_of_two(rows)
        for split in (1, 2, 4):
            choice = Choice(form="tma", block_m=tile_m, block_n=block_n, block_k=block_k, stages=stages,
                            warps=warps, split=split, norm_apart=shape.norm)
            programs = -(-shape.n // block_n) * -(-rows // tile_m) * split
            if (shape.k % 8 == 0 and block_k * split <= shape.k and choice not in found
                    and shared_bytes(shape, rows, choice) <= SHARED_BYTES
                    and (split == 1 or programs <= _SPLIT_PROGRAMS // 2)):
                found.append(choice)
    return found
