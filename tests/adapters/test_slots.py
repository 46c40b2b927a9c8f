"""Protects that a row's numbers hang on nothing beside it: over packed weights the hidden states of a step
with rows of several adapters and of none are, to the bit, what each row has alone."""


import numpy as np
import pytest
import torch

from ridgeline.adapters.load import Adapter
from ridgeline.adapters.slots import TILE, AdapterSlots
from tests.adapters.made import adapter_folder, loaded
from tests.nn.test_replay import Scene, packed_model, spec_of

SPEC = spec_of()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    """One at every place, one at few, one of an odd rank."""
    folder = tmp_path_factory.mktemp("adapters")
    targets = [{}, {"targets": ("q_proj", "v_proj")},
               {"rank": 7, "targets": ("gate_proj", "k_proj", "down_proj")}]
    return [loaded(adapter_folder(folder / str(seed), SPEC, seed=seed, **fields), SPEC)
            for seed, fields in enumerate(targets)]


def scene(adapters: dict[int, Adapter], *, alone: bool = False) -> Scene:
    slots = AdapterSlots(4)
    for slot, adapter in adapters.items():
        slots.put(slot, adapter)
    return Scene(SPEC, packed_model(SPEC, slots), alone=alone)


def test_beside_others_as_alone(made: list[Adapter]) -> None:
    """Whatever the number of rows, their order, the slot's number and a prompt's chunk in the step."""
    base, one = scene({}), {0: scene({}), **{i + 1: scene({1: adapter}) for i, adapter in enumerate(made)}}
    several, chunked = (scene({3: made[0], 1: made[1], 4: made[2]}, alone=alone) for alone in (False, True))
    slot_of = {0: 0, 1: 3, 2: 1, 3: 4}
    random = np.random.default_rng(0)
    for rows in (1, 2, 9, 3 * TILE + 5, 64, 4):
        which = [(7 * row + 1) % 4 for row in range(rows)]  # a sequence's adapter stays the same
        sequences, positions = list(range(rows)), random.integers(1, 500, rows).tolist()
        expected = torch.cat([
            one[adapter].step([row], [at], adapters=[int(adapter > 0)])
            for row, at, adapter in zip(sequences, positions, which, strict=True)])
        slots = [slot_of[adapter] for adapter in which]
        found, beside = (s.step(sequences, positions, adapters=slots) for s in (several, chunked))
        assert torch.equal(found, expected) and torch.equal(beside, expected), rows
        plain = base.step(sequences, positions)
        for row, adapter in enumerate(which):
            assert torch.equal(found[row], plain[row]) is (adapter == 0)
