"""Which decodes of a step begin with the same pages, found on the host, so that attention reads them once.

Where graphs find what is shared is device memory that stays.

A page is shared only with all pages before it (the prefix cache gives out whole prefixes, a fork copies none
of them), so rows with the same page at one index have the same pages up to it.

Legend: D decodes of a step, a piece is what one program reads of a prefix.
"""

from math import lcm

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.kernels.cascade import Shared, share
from ridgeline.runner.stage import stage
from ridgeline.schedule.plan import TableDelta
from ridgeline.spec.cache import CacheLayout, Paged

_PIECE, _MOST = 512, 16  # tokens; pieces that are read together
# Fewer tokens that need not be read do not pay for one more launch a layer (8 heads of 128 in 16 bits, an
# H200: 10 us).
_LEAST_TOKENS = 16_384
Groups = tuple[tuple[tuple[int, ...], int], ...]  # (places among the decodes, tokens of their prefix)


class Prefixes:
    """Follows the block tables of the first cache group whose attention sees everything."""

    def __init__(self, layout: CacheLayout, num_rows: int, max_model_len: int, *, piece: int = _PIECE,
                 least: int = _LEAST_TOKENS) -> None:
        """piece: tokens, at the least. least: tokens that a step must be spared."""
        kinds = [group.kind is Paged for group in layout.groups]
        self.group = kinds.index(True) if any(kinds) else None
        per_page = 1 if self.group is None else layout.groups[self.group].tokens_per_page
        self.piece = lcm(per_page, piece)  # whole tiles and whole pages
        self._least = least
        self.most = min(_MOST, max_model_len // self.piece)  # of a longer prefix each row reads the rest
        self._step = self.piece // per_page  # pages
        self._table = np.zeros((num_rows, -(-max_model_len // per_page)), np.int32)
        self._version, self._key, self._found = 0, b"", Groups()

    @property
    def usable(self) -> bool:
        """False where no prefix could ever be shared so."""
        return self.group is not None and self.most > 0

    def update(self, tables: tuple[TableDelta, ...], *, fresh: bool) -> None:
        """A plan's news. fresh: a request takes a row: only then can prefixes change."""
        if self.group is not None:
            news = tables[self.group]
            if len(news.row):
                self._table[news.row, news.index] = news.page
        self._version += fresh

    def of(self, rows: NDArray[np.int32], starts: NDArray[np.int32]) -> Groups:
        """rows, starts [D]: runner rows of the decodes and their new tokens' positions. Empty where it does
        not pay."""
        key = self._version.to_bytes(8, "little") + rows.tobytes()
        if key != self._key:
            found = self._groups(rows, starts // self.piece)
            saved = sum((len(places) - 1) * tokens for places, tokens in found)
            self._key, self._found = key, found if saved >= self._least else ()
        return self._found

    def _groups(self, rows: NDArray[np.int32], pieces: NDArray[np.int32]) -> Groups:
        """pieces [D]: whole ones before the new token."""
        able = np.flatnonzero(pieces > 0)
        if len(able) < 2:
            return ()
        ends = self._table[rows[able]][:, self._step - 1 :: self._step]  # the last page of each piece
        _, which, counts = np.unique(ends[:, 0], return_inverse=True, return_counts=True)
        found = []
        for one in np.flatnonzero(counts > 1):
            members = np.flatnonzero(which == one)
            common = ends[members, : min(pieces[able[members]].min(), self.most)]
            same = (common == common[0]).all(0).cumprod().sum()
            found.append((tuple(able[members].tolist()), int(same) * self.piece))
        return tuple(found)


class SharedPrefixes:
    """The groups of a step of up to max_rows places, for its graph. group: the cache group. group_heads:
    query heads of a KV head."""

    def __init__(self, prefixes: Prefixes, *, max_rows: int, group_heads: int, device: torch.device) -> None:
        assert prefixes.group is not None
        self.group, self._heads, self._device = prefixes.group, group_heads, device
        self._piece, self._most, self._max_rows = prefixes.piece, prefixes.most, max_rows
        self._items = max_rows * prefixes.most
        self._numbers = torch.zeros(2 * max_rows + 1 + 4 * self._items, dtype=torch.int32, device=device)
        self._held: Groups = ()

    def hold(self, groups: Groups) -> None:
        """What the next steps share."""
        if groups == self._held:
            return
        made = share(groups, num_rows=self._max_rows, num_heads=self._heads, piece=self._piece,
                     device=torch.device("cpu"))
        assert made is not None and len(made.work) <= self._items
        numbers = np.zeros(len(self._numbers), np.int32)
        at = 0
        for part, room in ((made.members_L, self._max_rows), (made.skip_S, self._max_rows), (made.total, 1),
                           (made.work.flatten(), 4 * self._items)):
            numbers[at: at + len(part)] = part.numpy()
            at += room
        self._numbers.copy_(stage(numbers, self._device), non_blocking=True)
        self._held = groups

    def shared(self, size: int) -> Shared:
        """Of a graph of so many places."""
        members, skip, total, work = self._numbers.split(
            (self._max_rows, self._max_rows, 1, 4 * self._items))
        return Shared(members_L=members, work=work.view(-1, 4), total=total, skip_S=skip[:size],
                      piece=self._piece, most=self._most, num_heads=self._heads)
