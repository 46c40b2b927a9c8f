"""Adapters in slots, and what a step's rows take of them.

Owns the numeric path of a low-rank product: always TILE rows at a time, in float32, so that a row's bits hang
on no other row and on no slot's number. Knows no request, no name and no block. A step names a slot for each
token; slot 0 is the base model.

Legend: T tokens of a step, t those that some adapter touches, P the same by slot, each slot's filled up to
whole tiles; K input features, N output features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.adapters.load import Adapter, Delta

TILE = 16
Slots = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """The tokens of some slots. rows_t: which of the step's, ascending; None where it is all of them.
    num_decodes: how many of them are decodes, which come first. tiles: (first place in P, slot). from_P:
    place in t of each place in P; to_t: place in P of each in t; None where both are the same."""

    rows_t: Tensor | None
    num_decodes: int
    tiles: tuple[tuple[int, int], ...]
    num_places: int
    from_P: Tensor | None
    to_t: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The tokens of a step that add something to the product of one weight, and what: a delta by slot."""

    split: _Split
    deltas: Mapping[int, Delta]

    @property
    def num_decodes(self) -> int:
        """How many of the tokens are decodes; they come first."""
        return self.split.num_decodes

    @property
    def everyone(self) -> bool:
        """True where these are all tokens of the step."""
        return self.split.rows_t is None

    def take(self, x_TK: Tensor) -> Tensor:
        """Their rows, [t, K]."""
        return x_TK if self.split.rows_t is None else x_TK.index_select(0, self.split.rows_t)

    def put(self, out_TN: Tensor, of_tN: Tensor) -> Tensor:
        """The rows of all tokens, in their own memory, with these rows in place of theirs."""
        return of_tN if self.split.rows_t is None else out_TN.index_copy_(0, self.split.rows_t, of_tN)

    def _delta(self, x_tK: Tensor, width: int) -> Tensor:
        """What is added to products of `width` columns, [t, width] of x's dtype. x_tK: what is multiplied."""
        split = self.split
        x_PK = (x_tK if split.from_P is None else x_tK.index_select(0, split.from_P)).float()
        out_PN = torch.zeros(split.num_places, width)
        for first, slot in split.tiles:
            tile, delta = slice(first, first + TILE), self.deltas[slot]
            low_TR = torch.mm(x_PK[tile], delta.a_KR)
            for strip in delta.strips:
                torch.mm(
                    low_TR[:, strip.low : strip.high], strip.b_rn, out=out_PN[tile, strip.first : strip.until]
                )
        return (out_PN if split.to_t is None else out_PN.index_select(0, split.to_t)).to(x_tK.dtype)

    def add(self, out_TN: Tensor, x_tK: Tensor) -> Tensor:
        """A product of all tokens, in its own memory, with what is added. x_tK: of these tokens, what was
        multiplied."""
        rows_t = self.split.rows_t
        if rows_t is None:
            return self.add_own(out_TN, x_tK)
        return out_TN.index_add_(0, rows_t, self._delta(x_tK, out_TN.shape[1]))

    def add_own(self, out_tN: Tensor, x_tK: Tensor) -> Tensor:
        """The same of a product of these tokens alone."""
        return out_tN.add_(self._delta(x_tK, out_tN.shape[1]))


@dataclass(slots=True, kw_only=True)
class _Current:
    """The step that runs: a slot for each token. splits: by the slots that have a delta."""

    slot_T: Slots
    num_decodes: int
    used: tuple[int, ...]
    splits: dict[tuple[int, ...], _Split] = field(default_factory=dict)

    def split(self, slots: tuple[int, ...]) -> _Split:
        """The tokens of these slots."""
        if slots not in self.splits:
            self.splits[slots] = _split(self.slot_T, self.num_decodes, slots)
        return self.splits[slots]


class AdapterSlots:
    """`num_slots` places for adapters, numbered from 1, over one model. Used by the thread that runs its
    steps."""

    dtype = torch.float32  # that their numbers are held in

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.seats: set[str] = set()  # full names of the weights whose products can take a delta
        self._held: list[Adapter | None] = [None] * (num_slots + 1)
        self._current: _Current | None = None

    def ready(self, adapter: Adapter) -> Adapter:
        """As it is held, which may take a while: any thread may do it."""
        return adapter

    def put(self, slot: int, adapter: Adapter | None) -> None:
        """Fill a slot, or empty it."""
        assert 1 <= slot <= self.num_slots
        self._held[slot] = adapter

    def enter(self, slot_T: Slots | Tensor, num_decodes: int) -> None:
        """A step begins whose tokens have these slots, on the host; decodes come first."""
        assert isinstance(slot_T, np.ndarray), "a CPU deals tokens out by slot"
        self._current = _Current(
            slot_T=slot_T,
            num_decodes=num_decodes,
            used=tuple(int(slot) for slot in np.unique(slot_T) if self._held[slot] is not None),
        )

    def leave(self) -> None:
        """The step is over."""
        self._current = None

    def touched(self, name: str) -> Touched | None:
        """Of the step that runs, the tokens that add something to the product of a weight; None where none
        does."""
        current = self._current
        if current is None:
            return None
        deltas = {slot: delta for slot in current.used if (delta := self._delta(slot, name)) is not None}
        return Touched(split=current.split(tuple(deltas)), deltas=deltas) if deltas else None

    def _delta(self, slot: int, name: str) -> Delta | None:
        adapter = self._held[slot]
        return None if adapter is None else adapter.deltas.get(name)


def _split(slot_T: Slots, num_decodes: int, slots: tuple[int, ...]) -> _Split:
    rows = np.flatnonzero(np.isin(slot_T, slots))
    slot_t = slot_T[rows]
    tiles: list[tuple[int, int]] = []
    places: list[Slots] = []
    to_t = np.zeros(len(rows), np.int64)
    for slot in slots:
        own = np.flatnonzero(slot_t == slot)
        first = TILE * len(tiles)
        to_t[own] = first + np.arange(len(own))
        count = -(-len(own) // TILE)
        tiles += [(first + TILE * tile, slot) for tile in range(count)]
        places += [own, np.repeat(own[:1], count * TILE - len(own))]  # any row fills up a tile
    from_P = np.concatenate(places)
    same = np.array_equal(from_P, np.arange(len(rows)))
    return _Split(
        rows_t=None if len(rows) == len(slot_T) else torch.from_numpy(rows),
        num_decodes=int((rows < num_decodes).sum()),
        tiles=tuple(tiles),
        num_places=len(from_P),
        from_P=None if same else torch.from_numpy(from_P),
        to_t=None if same else torch.from_numpy(to_t),
    )
