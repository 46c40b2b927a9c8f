"""Adapters on a GPU: the slots of a weight stand side by side in two matrices, and what they add is two plain
products with a mask between: x through the first matrices of all slots, zeros for slots that are not the
token's, the rest through the second ones.

Why so: that reads the ranks of every slot once a step, S R (K + N) numbers of a weight, whatever the rows;
gathering each row's own pair would read and write R (K + N) for every row, or token of a prompt. Up to a few
hundred ranks in all (8 slots of rank 16 at three pairs are 384) it is a small part of the weight's own K N.
No shape hangs on who has which adapter and nothing is asked of the host, so a graph can hold it, for any
adapters that come later. The price is that a step with any adapter reads all slots, empty ones too, and that
the second matrix of joined weights (q, k, v) is mostly zeros: a product less for every pair.

Knows no request, no name and no block. Legend: T tokens, S slots, R ranks of a slot, Z all slots' ranks, K
input features, N output features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.adapters.load import Adapter, Delta
from ridgeline.adapters.slots import AdapterSlots
from ridgeline.models.adapter import Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """The pairs of all slots for one weight."""

    a_SRK: Tensor
    b_SRN: Tensor

    def image(self, delta: Delta) -> tuple[Tensor, Tensor]:
        """A delta in the form of a slot, in the host's memory, from which a device copies by itself."""
        a_RK, b_RN = (torch.zeros(x.shape[1:], dtype=x.dtype) for x in (self.a_SRK, self.b_SRN))
        a_RK[: delta.a_KR.shape[1]] = delta.a_KR.t()
        for strip in delta.strips:
            b_RN[strip.low : strip.high, strip.first : strip.until] = strip.b_rn
        return (a_RK.pin_memory(), b_RN.pin_memory()) if self.a_SRK.is_cuda else (a_RK, b_RN)

    def put(self, slot: int, image: tuple[Tensor, Tensor] | None) -> None:
        """Fill a slot; None: it adds nothing to this weight. Nobody waits: the copies are a stream's."""
        a_RK, b_RN = self.a_SRK[slot], self.b_SRN[slot]
        if image is None:
            a_RK.zero_()
            b_RN.zero_()
            return
        for there, here in zip((a_RK, b_RN), image, strict=True):
            there.copy_(here, non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedTouched:
    """What the slots add to the product of one weight, for all tokens of a step; nothing to tokens of slot 0.
    See slots.Touched. others_TS1: True where the slot is not the token's."""

    stack: _Stack
    others_TS1: Tensor
    num_decodes: int
    everyone: bool = True

    def take(self, x_TK: Tensor) -> Tensor:
        return x_TK

    def put(self, out_TN: Tensor, of_tN: Tensor) -> Tensor:
        return of_tN

    def add(self, out_TN: Tensor, x_TK: Tensor) -> Tensor:
        """The product, in its own memory, with what is added. A slot's own numbers, were they not finite,
        never reach a token of another: they are replaced, not multiplied by zero."""
        a_SRK, b_SRN = self.stack.a_SRK, self.stack.b_SRN
        low_TZ = torch.mm(x_TK, a_SRK.flatten(0, 1).t())
        low_TZ.view(-1, *a_SRK.shape[:2]).masked_fill_(self.others_TS1, 0)
        return out_TN.addmm_(low_TZ, b_SRN.flatten(0, 1))

    add_own = add


class StackedSlots:
    """`num_slots` places for adapters, numbered from 1, over one model on a GPU; see slots.AdapterSlots.
    All of their memory is taken at once. But for `ready`, used by the thread that launches its steps."""

    def __init__(
        self, num_slots: int, shapes: Mapping[str, Seat], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """shapes: of what one slot holds at most, by full weight name (models.adapter.seat_shapes)."""
        self.num_slots, self.dtype = num_slots, dtype
        self.seats: set[str] = set()
        self._stacks = {
            name: _Stack(
                a_SRK=torch.zeros(num_slots, seat.ranks, seat.columns, dtype=dtype, device=device),
                b_SRN=torch.zeros(num_slots, seat.ranks, seat.rows, dtype=dtype, device=device),
            )
            for name, seat in shapes.items()
        }
        self._numbers_S = torch.arange(1, num_slots + 1, device=device)
        self._current: tuple[Tensor, int] | None = None

    def ready(self, adapter: Adapter) -> Adapter:
        """With its images, which take the host a copy of all its numbers: any thread may do it. One that is
        ready stays as it is."""
        if adapter.images:
            return adapter
        images = {name: self._stacks[name].image(delta) for name, delta in adapter.deltas.items()}
        return replace(adapter, images=images)

    def put(self, slot: int, adapter: Adapter | None) -> None:
        """Fill a slot, or empty it, behind the steps that are launched and before any later one."""
        assert 1 <= slot <= self.num_slots
        images = {} if adapter is None else self.ready(adapter).images
        for name, stack in self._stacks.items():
            stack.put(slot - 1, images.get(name))

    def enter(self, slot_T: NDArray[np.int64] | Tensor, num_decodes: int) -> None:
        """A step begins whose tokens have these slots, int64 on the device; decodes come first."""
        assert isinstance(slot_T, Tensor), "a GPU finds slots on itself"
        self._current = (slot_T[:, None] != self._numbers_S).unsqueeze(2), num_decodes

    def leave(self) -> None:
        """The step is over."""
        self._current = None

    def touched(self, name: str) -> StackedTouched | None:
        """What is added to the product of a weight in the step that runs; None for a step without adapters
        and for a weight that takes none."""
        if self._current is None or name not in self._stacks:
            return None
        others_TS1, num_decodes = self._current
        return StackedTouched(stack=self._stacks[name], others_TS1=others_TS1, num_decodes=num_decodes)


AnySlots = AdapterSlots | StackedSlots
