"""What blocks with a recurrent state share: their rows' states in the arena, and the recurrence over a step.

A row keeps, in float32, the tail of its convolution [W, E] and then its state [M, K, V]. A step works on
copies, which land in the arena only when the whole step is through (`Step.land`): a step that raises half way
has changed no state and can be run again. Drafts under test are taken one after another; where some fall, the
tokens that stand are run once more, from the states that the arena still has. Legend: see blocks/recurrence;
N arena pages, P pages of a state, F floats.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ridgeline.blocks.recurrence import (
    Chunks,
    Inputs,
    Wave,
    convolve_chunks,
    convolve_rows,
    lay_out,
    step_chunks,
    step_rows,
    waves_of,
)
from ridgeline.blocks.rowwise import rowwise
from ridgeline.blocks.step import CacheRegion, Long, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """The recurrence of one block. conv_width: tokens that the convolution sees, the current one counted.
    apart: see blocks.parts."""

    channels: int
    conv_width: int
    heads: int
    key_width: int
    value_width: int
    apart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Sequences that verify drafts, those of most tokens first: each one's place in the step, first token and
    number of tokens. back_T: where in the waves each decode is."""

    place: Long
    first: Long
    count: Long
    back_T: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStep:
    """A step for all blocks of one share key, decodes first.

    rows_S: of the block tables, None where each row is a sequence. fresh_S: true of sequences that begin at
    position 0, None when none does. waves: the decodes. runs, chunks: None without any.
    """

    rows_S: Tensor | None
    fresh_S: Tensor | None
    waves: tuple[Wave, ...]
    runs: Runs | None
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
        device, first, starts = self._pages_NF.device, step.num_decodes, step.starts
        rows, runs, chunks = None, None, None
        waves: tuple[Wave, ...] = ((slice(first), first),) if first else ()
        if first < len(starts):
            chunks = lay_out(starts[first:], step.counts[first:], self._shape.conv_width - 1, device)
        if step.runs is not None:
            place = np.argsort(-step.runs, kind="stable")
            begin, count = (step.runs.cumsum() - step.runs)[place], step.runs[place]
            waves = waves_of(begin, count, device)
            back_T = torch.cat([tokens for tokens, _ in waves if isinstance(tokens, Tensor)]).argsort()
            runs = Runs(place=place, first=begin, count=count, back_T=back_T)
            rows = np.concatenate([begin, np.arange(first, len(starts))])
            starts = starts[rows]
        fresh_S = torch.from_numpy(starts == 0).to(device) if (starts == 0).any() else None
        return StateStep(rows_S=None if rows is None else torch.from_numpy(rows).to(device), fresh_S=fresh_S,
                         waves=waves, runs=runs, chunks=chunks)

    def load(self, step: Step, shared: StateStep) -> "RowStates":
        """A copy of the states of the step's sequences, zero where one begins."""
        table_SP = step.groups[self._group].table_SP[:, self._columns]
        if shared.rows_S is not None:
            table_SP = table_SP[shared.rows_S]
        states = RowStates(self._shape, self._found(table_SP, shared.fresh_S), shared)
        step.landings.append(partial(self._land, table_SP, states))
        return states

    def _found(self, table_SP: Tensor, fresh_S: Tensor | None) -> Tensor:
        rows_SF = self._pages_NF.index_select(0, table_SP.flatten()).view(len(table_SP), -1)
        skip = self._begin - self._columns.start * self._pages_NF.shape[1]
        state_SF = rows_SF[:, skip: skip + self._end - self._begin]
        if fresh_S is not None:
            state_SF[fresh_S] = 0.0
        return state_SF

    def _land(self, table_SP: Tensor, states: "RowStates", stood: Long | None) -> None:
        """Back into the pages, page by page of a row: neighbours in the same page are left alone."""
        if stood is not None and len(fallen := states.fallen(stood)):
            fresh_S = states.shared.fresh_S
            found_SF = self._found(table_SP[fallen], None if fresh_S is None else fresh_S[fallen])
            states.go_back(fallen, found_SF, stood)
        size = self._pages_NF.shape[1]
        for column in range(table_SP.shape[1]):
            page = (self._columns.start + column) * size
            begin, end = max(self._begin, page), min(self._end, page + size)
            part_SF = states.state_SF[:, begin - self._begin: end - self._begin]
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
    """The states of a step's sequences, decodes first; every operation moves them on."""

    def __init__(self, shape: StateShape, state_SF: Tensor, shared: StateStep) -> None:
        tail = (shape.conv_width - 1) * shape.channels
        self.state_SF = state_SF
        self.shared = shared
        self._shape = shape
        self._tail_SWE = state_SF[:, :tail].unflatten(1, (shape.conv_width - 1, shape.channels))
        self._state_SMKV = state_SF[:, tail:].unflatten(1, (shape.heads, shape.key_width, shape.value_width))
        self._moves: list[Callable[[RowStates], object]] = []  # of drafts under test

    def convolve(self, x_TE: Tensor, weight_E1W: Tensor, bias_E: Tensor | None) -> Tensor:
        """silu of the causal convolution of all tokens, [T, E]."""
        tail_SWE, chunks = self._tail_SWE, self.shared.chunks
        outs = self._step(
            lambda tokens, rows: convolve_rows(x_TE[tokens], tail_SWE[rows], weight_E1W, bias_E))
        if chunks is not None:
            x_CE, rows = x_TE[-len(chunks.place_T):], len(chunks.order_S)
            outs.append(convolve_chunks(x_CE, tail_SWE[-rows:], weight_E1W, bias_E, chunks))
        if self.shared.runs is not None:
            self._moves.append(lambda states: states.convolve(x_TE, weight_E1W, bias_E))
        return rowwise(torch.nn.functional.silu, self._shape.apart)(torch.cat(outs))

    def scan(self, q_TGK: Tensor, k_TGK: Tensor, v_TMV: Tensor, g_TM: Tensor, b_TM: Tensor | None = None
             ) -> Tensor:
        """The recurrence over all tokens, [T, M, V]."""
        state_SMKV, chunks = self._state_SMKV, self.shared.chunks
        inputs = Inputs(q_TGK=q_TGK, k_TGK=k_TGK, v_TMV=v_TMV, g_TM=g_TM, b_TM=b_TM)
        outs = self._step(lambda tokens, rows: step_rows(inputs.part(tokens), state_SMKV[rows]))
        if chunks is not None:
            last = inputs.part(slice(-len(chunks.place_T), None))
            outs.append(step_chunks(last, state_SMKV[-len(chunks.order_S):], chunks))
        if self.shared.runs is not None:
            self._moves.append(lambda states: states.scan(q_TGK, k_TGK, v_TMV, g_TM, b_TM))
        return torch.cat(outs)

    def _step(self, move: Callable[[slice | Tensor, slice], Tensor]) -> list[Tensor]:
        """What a move brings of the decodes, wave by wave, in the order of their tokens."""
        outs = []
        for tokens, rows in self.shared.waves:
            if not self._shape.apart:
                outs.append(move(tokens, slice(rows)))
                continue
            places = range(rows) if isinstance(tokens, slice) else tokens.tolist()
            outs += [move(slice(token, token + 1), slice(row, row + 1)) for row, token in enumerate(places)]
        return outs if self.shared.runs is None else [torch.cat(outs)[self.shared.runs.back_T]]

    def fallen(self, stood: Long) -> Long:
        """The sequences of which fewer tokens stand than were taken, those of most first. stood: by place."""
        runs = self.shared.runs
        assert runs is not None, "no draft is under test"
        kept = stood[runs.place]
        fallen = np.flatnonzero(kept < runs.count)
        return fallen[np.argsort(-kept[fallen], kind="stable")]

    def go_back(self, fallen: Long, found_SF: Tensor, stood: Long) -> None:
        """These sequences' states become what they are after the tokens that stand; found: before all."""
        runs = self.shared.runs
        assert runs is not None
        waves = waves_of(runs.first[fallen], stood[runs.place[fallen]], found_SF.device)
        again = RowStates(self._shape, found_SF, StateStep(
            rows_S=None, fresh_S=None, waves=waves, runs=None, chunks=None))
        for move in self._moves:
            move(again)
        self.state_SF[torch.from_numpy(fallen).to(found_SF.device)] = found_SF
