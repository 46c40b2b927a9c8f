"""What blocks with a recurrent state share: their rows' states in the arena, and the recurrence over a step.

A row keeps, in float32, the tail of its convolution [W, E] and then its state [M, K, V]. A step works on
copies, which land in the arena only when the whole step is through (`Step.land`): a step that raises half way
has changed no state and can be run again. Legend: see kernels/recurrence; N arena pages, B bytes of a page.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ridgeline.blocks.step import CacheRegion, Step
from ridgeline.kernels.recurrence import (
    Chunks,
    Inputs,
    convolve_chunks,
    convolve_rows,
    lay_out,
    step_chunks,
    step_rows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """The recurrence of one block. conv_width: tokens that the convolution sees, the current one counted."""

    channels: int
    conv_width: int
    heads: int
    key_width: int
    value_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStep:
    """A step for all blocks of one share key. fresh: rows that begin at position 0. chunks: None without
    any."""

    fresh: Tensor | None
    chunks: Chunks | None


class States:
    """One block's states of all sequences."""

    def __init__(self, shape: StateShape, region: CacheRegion) -> None:
        assert region.span is not None
        self._shape = shape
        self._group = region.group
        self._pages_NF = region.bytes_NB.view(torch.float32)
        size = self._pages_NF.shape[1]
        self._begin = region.span[0] // 4
        self._end = self._begin + region.span[1] // 4
        self._columns = slice(self._begin // size, -(-self._end // size))

    def key(self) -> Hashable:
        """Blocks of equal key share a StateStep."""
        return ("state", self._group, self._shape)

    def prepare(self, step: Step) -> StateStep:
        device, first = self._pages_NF.device, step.num_decodes
        fresh, chunks = np.flatnonzero(step.starts == 0), None
        if first < len(step.starts):
            chunks = lay_out(step.starts[first:], step.counts[first:], self._shape.conv_width - 1, device)
        return StateStep(fresh=torch.from_numpy(fresh).to(device) if len(fresh) else None, chunks=chunks)

    def load(self, step: Step, shared: StateStep) -> "RowStates":
        """A copy of the states of the step's rows, zero where a sequence begins."""
        table_SP = step.groups[self._group].table_SP[:, self._columns]
        rows_SF = self._pages_NF.index_select(0, table_SP.flatten()).view(len(table_SP), -1)
        skip = self._begin - self._columns.start * self._pages_NF.shape[1]
        state_SF = rows_SF[:, skip: skip + self._end - self._begin]
        if shared.fresh is not None:
            state_SF[shared.fresh] = 0.0
        step.landings.append(partial(self._store, table_SP, state_SF))
        return RowStates(self._shape, state_SF, shared, step.num_decodes)

    def _store(self, table_SP: Tensor, state_SF: Tensor) -> None:
        """Back into the pages, page by page of a row: neighbours in the same page are left alone."""
        size = self._pages_NF.shape[1]
        for column in range(table_SP.shape[1]):
            page = (self._columns.start + column) * size
            begin, end = max(self._begin, page), min(self._end, page + size)
            part_SF = state_SF[:, begin - self._begin: end - self._begin]
            self._pages_NF[:, begin - page: end - page].index_copy_(0, table_SP[:, column].long(), part_SF)


class StateBlock:
    """The half of a recurrent block's module that is the same for all: its states, and what a step needs of
    them."""

    def __init__(self, shape: StateShape) -> None:
        self._shape = shape

    def bind(self, regions: Sequence[CacheRegion]) -> None:
        (region,) = regions
        self._states = States(self._shape, region)

    def share_key(self) -> Hashable:
        return self._states.key()

    def prepare(self, step: Step) -> StateStep:
        return self._states.prepare(step)


class RowStates:
    """The states of a step's rows, decodes first; every operation moves them on."""

    def __init__(self, shape: StateShape, state_SF: Tensor, shared: StateStep, num_decodes: int) -> None:
        tail = (shape.conv_width - 1) * shape.channels
        self._tail_SWE = state_SF[:, :tail].unflatten(1, (shape.conv_width - 1, shape.channels))
        self._state_SMKV = state_SF[:, tail:].unflatten(1, (shape.heads, shape.key_width, shape.value_width))
        self._chunks = shared.chunks
        self._decodes = num_decodes

    def convolve(self, x_TE: Tensor, weight_E1W: Tensor, bias_E: Tensor | None) -> Tensor:
        """silu of the causal convolution of all tokens, [T, E]."""
        first, tail, outs = self._decodes, self._tail_SWE, []
        if first:
            outs.append(convolve_rows(x_TE[:first], tail[:first], weight_E1W, bias_E))
        if self._chunks is not None:
            outs.append(convolve_chunks(x_TE[first:], tail[first:], weight_E1W, bias_E, self._chunks))
        return torch.nn.functional.silu(torch.cat(outs))

    def scan(self, q_TGK: Tensor, k_TGK: Tensor, v_TMV: Tensor, g_TM: Tensor, b_TM: Tensor | None = None
             ) -> Tensor:
        """The recurrence over all tokens, [T, M, V]."""
        first, state, outs = self._decodes, self._state_SMKV, []
        inputs = Inputs(q_TGK=q_TGK, k_TGK=k_TGK, v_TMV=v_TMV, g_TM=g_TM, b_TM=b_TM)
        if first:
            outs.append(step_rows(inputs.part(slice(first)), state[:first]))
        if self._chunks is not None:
            outs.append(step_chunks(inputs.part(slice(first, None)), state[first:], self._chunks))
        return torch.cat(outs)
