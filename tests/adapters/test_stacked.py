"""Protects what a GPU's slots add, by plain torch here: what a CPU's slots do, whoever was there before."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from ridgeline.adapters.load import Adapter, load_adapter
from ridgeline.adapters.slots import AdapterSlots
from ridgeline.adapters.stacked import AnySlots, StackedSlots
from ridgeline.base.errors import CheckpointError
from ridgeline.models.adapter import places, read_adapter, seat_shapes, slot_bytes
from tests.adapters.made import ALL, adapter_folder, loaded
from tests.helpers import tiny_spec

SPEC = tiny_spec()
CPU = torch.device("cpu")
RANK = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    """At every place, at few, and of a smaller rank."""
    root, found = tmp_path_factory.mktemp("adapters"), []
    for rank, targets in ((RANK, ALL), (RANK, ("k_proj", "o_proj")), (3, ("v_proj", "up_proj", "down_proj"))):
        folder = adapter_folder(root / str(len(found)), SPEC, seed=len(found), rank=rank, targets=targets)
        found.append(loaded(folder, SPEC))
    return found


def added(
    slots: AnySlots, which: Sequence[int], x_by_name: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """To products that are zero."""
    numbers = np.array(which, np.int64)
    slots.enter(numbers if isinstance(slots, AdapterSlots) else torch.from_numpy(numbers), 0)
    rows, found = dict(SPEC.params()), {}
    for name, x_TK in x_by_name.items():
        out_TN = torch.zeros(len(x_TK), rows[name].shape[0])
        if (touched := slots.touched(name)) is not None:
            touched.add(out_TN, touched.take(x_TK))
        found[name] = out_TN
    slots.leave()
    return found


def test_as_a_cpu_adds_it(made: list[Adapter]) -> None:
    """For all weights and any order of tokens; slots are filled anew, with less, and emptied. What is not
    finite in one token stays there."""
    shapes = seat_shapes(SPEC, RANK)
    ours, plain = StackedSlots(3, shapes, dtype=torch.float32, device=CPU), AdapterSlots(3)
    random = torch.Generator().manual_seed(0)
    for fill in ((0, 1, 2), (2, None, 1), (1, 0, 0)):
        for slot, which in enumerate(fill, 1):
            for slots in (ours, plain):
                adapter = None if which is None else made[which]
                slots.put(slot, slots.ready(adapter) if adapter is not None and slot < 3 else adapter)
        held = [0, *(slot for slot, which in enumerate(fill, 1) if which is not None)]
        order = [held[(7 * i) % len(held)] for i in range(11)]
        x = {name: torch.randn(11, seat.columns, generator=random) for name, seat in shapes.items()}
        got, want = added(ours, order, x), added(plain, order, x)
        assert sum(bool(out.any()) for out in want.values()) > 2
        for name in shapes:
            torch.testing.assert_close(got[name], want[name])
            x[name][3] = torch.inf
        broken = added(ours, order, x)
        for name in shapes:
            rest = [i for i in range(11) if i != 3]
            assert torch.equal(broken[name][rest], got[name][rest])


def test_memory_and_numbers(made: list[Adapter], tmp_path: Path) -> None:
    """The memory is what a plan counts; numbers that a half cannot hold are refused before they are put."""
    slots = StackedSlots(2, seat_shapes(SPEC, RANK), dtype=torch.bfloat16, device=CPU)
    held = sum(x.nbytes for stack in slots._stacks.values() for x in (stack.a_SRK, stack.b_SRN))
    assert held == 2 * slot_bytes(SPEC, RANK, element_bytes=2, stacked=True)
    assert slots.touched(next(iter(seat_shapes(SPEC, RANK)))) is None
    seats = {place.weight for place in places(SPEC).values()}
    file = read_adapter(adapter_folder(tmp_path, SPEC, strength=1e6), SPEC, max_rank=RANK)
    load_adapter(file, seats, torch.bfloat16)
    with pytest.raises(CheckpointError, match="too large for"):
        load_adapter(file, seats, torch.float16)
