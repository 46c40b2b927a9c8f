"""A decode step's kernel calls, recorded once and run again in one: what a CUDA graph is to a GPU.

Between kernels of a step Python would cost as much as the kernels. Knows no model.
"""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ridgeline.kernels.cpu.structs import Attention, Call, Matrix, Product

if TYPE_CHECKING:  # a library's trial goes without torch
    from torch import Tensor

KEY_CHUNK, MAX_GROUP = 256, 16  # of attention.c
CUT_BELOW = 4  # work items a thread below which each row's keys are cut over threads


def passes(heads: int, kv_heads: int) -> int:
    """Passes over a KV head's keys: its query heads go by MAX_GROUP."""
    return -(-heads // kv_heads // MAX_GROUP)


def num_runs(counts: NDArray[np.int64], heads: int, kv_heads: int) -> int:
    """Runs of sequences with so many successive tokens each: a pass takes MAX_GROUP queries of a run."""
    return int((-(-counts // run_tokens(heads, kv_heads))).sum())


def run_tokens(heads: int, kv_heads: int) -> int:
    """Tokens of a run at most."""
    return max(1, MAX_GROUP * kv_heads // heads)


def chunks_cut(units: int, longest: int, threads: int) -> int:
    """Pieces that each row's keys are cut in, 0 for none. units: work items; longest: the last position."""
    chunks = longest // KEY_CHUNK + 1
    return chunks if threads > 1 and chunks > 1 and units < CUT_BELOW * threads else 0


class Tape:
    """Calls in order, with all that their pointers need kept alive. Serves 1 to max_rows rows.

    threads: of every run, since the calls have room for so many.
    """

    def __init__(self, max_rows: int, threads: int) -> None:
        self.max_rows = max_rows
        self.threads = threads
        self._calls: list[tuple[int, Matrix | None, Product | Attention]] = []
        self._kept: list[object] = []
        self.shared: dict[int, Tensor] = {}  # by kind of call, see workspace.py
        self._array: ctypes.Array[Call] | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, kind: int, matrix: Matrix | None, arguments: Product | Attention,
            keep: Sequence[object]) -> None:
        self._calls.append((kind, matrix, arguments))
        self._kept += keep

    def calls(self) -> ctypes.Array[Call]:
        """The calls in order; nothing may be added any more."""
        if self._array is None:
            self._array = (Call * len(self._calls))(*(
                Call(kind=kind, arguments=ctypes.addressof(arguments),
                     matrix=None if matrix is None else ctypes.addressof(matrix))
                for kind, matrix, arguments in self._calls))
        return self._array

    def chunks(self, counts: NDArray[np.int64], longest: int) -> int:
        """`chunks_cut` for sequences with so many tokens each."""
        shapes = {(call.heads, call.kv_heads) for _, _, call in self._calls if isinstance(call, Attention)}
        units = max((num_runs(counts, heads, kv_heads) * kv_heads * passes(heads, kv_heads)
                     for heads, kv_heads in shapes), default=0)
        return chunks_cut(units, longest, self.threads)
