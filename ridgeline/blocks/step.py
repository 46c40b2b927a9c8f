"""A step and a cache as the blocks' modules see them. Knows no scheduler, no request and no layer.

Legend: T flat tokens, W those that are wanted, S rows of the step, P table entries a row, N pages of the
arena.
The first `num_decodes` rows have one token each, so row i's token is token i; prompt chunks follow.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.kernels.cascade import Shared

Long = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStep:
    """One cache group's part of a step.

    table_SP int32: page of each index of a row's block table; any valid page past the row's length.
    slots_T int64: page * tokens_per_page + offset of the place that each token's entry takes.
    """

    table_SP: Tensor
    slots_T: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward pass.

    ids_T, positions_T int64. reach_T int64: max(length of the token's prompt, position + 1), the length
    that position embeddings scale by. lengths_S int32: tokens of each row once the step is done. starts,
    counts: the same rows on the host (position of the first token, number of tokens). groups: by cache
    group. runs: where sequences verify drafts, how many decodes each has, one after another; None where each
    has one. adapter_T: the slot of the adapter that a token's sequence takes, 0 for none; on the host, and
    for a GPU's kernels int64 on it; None where none of the step takes any. chunks_C3: int32 on the device, of
    a step in a graph: (first token behind the decodes, its position, tokens) of each row after them, idle
    ones included; what the host says of rows then means nothing. wanted_W: on the device, which tokens are
    asked for behind the last layer, the decodes first; None where all are. shared: what decodes have in
    common of the cache group `shared_group`, for `Prefixed` blocks. landings: what the blocks owe the cache
    once the whole step is through: recurrent states, which unlike keys and values must not be written twice
    when a step is run again, nor past a draft that falls.
    """

    ids_T: Tensor
    positions_T: Tensor
    reach_T: Tensor
    lengths_S: Tensor
    starts: Long
    counts: Long
    num_decodes: int
    groups: tuple[GroupStep, ...]
    runs: Long | None = None
    adapter_T: Long | Tensor | None = None
    chunks_C3: Tensor | None = None
    wanted_W: Tensor | None = None
    shared: Shared | None = None
    shared_group: int | None = None
    landings: list[Callable[[Long | None], None]] = field(default_factory=list)

    def land(self, stood: Long | None = None) -> None:
        """Nothing of the step is left that could fail: its states go into the cache. stood: of each run, the
        leading tokens that stand; None where all do."""
        for landing in self.landings:
            landing(stood)

    def only(self, wanted_W: Tensor) -> "Step":
        """These tokens of it, as a `Tokenwise` block sees them."""
        ids, positions, reach = (x_T[wanted_W] for x_T in (self.ids_T, self.positions_T, self.reach_T))
        return replace(self, ids_T=ids, positions_T=positions, reach_T=reach, wanted_W=None)

    @property
    def num_tokens(self) -> int:
        return self.ids_T.shape[0]

    @property
    def token_lens(self) -> Tensor | None:
        """lengths_S where each token is a row of its own, as in a graph, which has idle ones of length 0."""
        return self.lengths_S if len(self.lengths_S) == self.num_tokens else None

    @property
    def prefill_from(self) -> int:
        """Tokens before it take a product's path of decodes: in a graph all do, since no launch costs it
        anything."""
        return self.num_decodes if self.chunks_C3 is None else self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRegion:
    """Where one (layer, slot) keeps its entries: bytes_NB uint8 is a strided view of the arena.

    span: of a State, which may take several pages of a row: (first byte, number of bytes) in the row's pages
    one after another; bytes_NB are then the pages whole. None for the other kinds.
    """

    group: int
    tokens_per_page: int
    bytes_NB: Tensor
    dtype: torch.dtype
    span: tuple[int, int] | None = None

    def entries(self, *shape: int) -> Tensor:
        """The region as [N, tokens_per_page, *shape] of its dtype; the same memory."""
        typed = self.bytes_NB.view(self.dtype)
        return typed.unflatten(1, (self.tokens_per_page, *shape))


@runtime_checkable
class Kept(Protocol):
    """What `Block.prepare` makes, where a recorded step can be run again with another step's."""

    def with_room(self, max_rows: int) -> "Kept | None":
        """The same in memory of its own that holds up to max_rows rows; None when no kernel reads it."""
        ...

    def receive(self, other: object) -> None:
        """Take what `prepare` made for another step into that memory."""
        ...


@runtime_checkable
class Capturable(Protocol):
    """A block whose decodes depend on nothing on the host once they are prepared: a CUDA graph can hold
    them."""

    capturable: bool


@runtime_checkable
class Tokenwise(Protocol):
    """A block whose tokens see nothing of each other, nor what a row or a chunk is: where only such follow,
    none but the tokens that are asked for have to go on."""

    tokenwise: bool


@runtime_checkable
class Routed(Protocol):
    """A block whose tokens choose which of its weights a step reads."""

    def take_experts_read(self) -> int:
        """Distinct experts read since the last call, each counted once a step."""
        ...


@runtime_checkable
class Dealt(Protocol):
    """The same, where only the device knows the choice. expert_edges int32 [experts + 1], of the last step:
    from 0 on, where each expert's tokens begin and end among all choices in order."""

    expert_edges: Tensor


@runtime_checkable
class Prefixed(Protocol):
    """A block that reads what rows have in common once. group: its cache group. group_heads: query heads of a
    KV head."""

    @property
    def group(self) -> int: ...

    @property
    def group_heads(self) -> int: ...


@runtime_checkable
class Attending(Protocol):
    """A block whose attention one of several ways serves. way: which, and why, once it is bound."""

    @property
    def way(self) -> tuple[str, str]: ...


class Block(Protocol):
    """A block's module. It owns its norm and its residual: what comes in goes on through it."""

    def bind(self, regions: Sequence[CacheRegion]) -> None:
        """Take the cache regions, one for each CacheSpec of the block. Called once, before the first step."""
        ...

    def share_key(self) -> Hashable:
        """Blocks of equal key share what `prepare` makes."""
        ...

    def prepare(self, step: Step) -> object:
        """What all blocks of this key need once a step (rotation angles, gather plans)."""
        ...

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor: ...
