"""Protects the road from a plan's arrays to the device: flat tokens, tables, slots, copies."""

import numpy as np
import pytest
import torch

from ridgeline.runner.cache import PageCache
from ridgeline.runner.inputs import build_step, idle_prompts, select
from ridgeline.runner.rows import Rows
from ridgeline.schedule.plan import PLACEHOLDER, Copies, RowStart, StepPlan, TableDelta
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tiny_spec
from tests.kernels.devices import CUDA, on_gpu

CPU = torch.device("cpu")
LAYOUT = plan_layout(tiny_spec(num_layers=3, windows=(None, 6, 6)).cache(4), block_tokens=4)


def _array(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def _rows() -> Rows:
    """Rows 1 and 4 of 5 hold requests with prompts of 9 and 2 tokens."""
    rows = Rows(LAYOUT, 5, 64, CPU)
    for row, prompt in ((1, 9), (4, 2)):
        rows.take(RowStart(request=row, row=row, params=SamplingParams(), seed=0, output=_array(),
                           prompt=np.arange(prompt, dtype=np.int32), stop_token_ids=()))
    rows.update(tuple(
        TableDelta(row=_array(1, 1, 4, 1), index=_array(0, 1, 0, 2),
                   page=_array(base, base + 1, base + 2, base + 3)) for base in (10, 20)))
    return rows


def _plan() -> StepPlan:
    """Row 4 decodes its token 3; row 1 feeds positions 4..8."""
    return StepPlan(
        step=0, request=np.array([7, 8]), row=_array(4, 1), start=_array(3, 4), count=_array(1, 5),
        sample=np.array([1, 1], np.uint8), draft=_array(0, 0), tokens=_array(PLACEHOLDER, 5, 6, 7, 8, 9),
        num_decodes=1, row_starts=(), tables=tuple(TableDelta(row=_array(), index=_array(), page=_array())
                                                   for _ in LAYOUT.groups), copies=Copies.none())


def test_flat_tokens() -> None:
    """Ids with the row's last token in place of the placeholder, positions, lengths, reach by prompt."""
    rows = _rows()
    rows.last_token[4] = 77
    step = build_step(_plan(), rows, LAYOUT)
    assert step.ids_T.tolist() == [77, 5, 6, 7, 8, 9]
    assert step.positions_T.tolist() == [3, 4, 5, 6, 7, 8]
    assert step.reach_T.tolist() == [4, 9, 9, 9, 9, 9]
    assert step.lengths_S.tolist() == [4, 9] and step.num_decodes == 1
    assert step.starts.tolist() == [3, 4] and step.counts.tolist() == [1, 5]


def test_tables_and_slots() -> None:
    """Each group by its own table; a slot is page * tokens_per_page + offset."""
    step = build_step(_plan(), _rows(), LAYOUT)
    assert len(LAYOUT.groups) == 2
    for group, cut, base in zip(step.groups, LAYOUT.groups, (10, 20)):
        assert group.table_SP.dtype == torch.int32
        size, table = cut.tokens_per_page, [base, base + 1, base + 3]
        assert group.table_SP[0, 0] == base + 2 and group.table_SP[1, :3].tolist() == table
        mine = [table[p // size] * size + p % size for p in range(4, 9)]
        assert group.slots_T.tolist() == [(base + 2) * size + 3, *mine]


def test_select_keeps_rows_whole() -> None:
    """A part of a plan has its rows' tokens, counts its decodes and repeats no news."""
    plan = _plan()
    second, first = select(plan, np.array([1])), select(plan, np.array([0]))
    assert second.tokens.tolist() == [5, 6, 7, 8, 9] and second.num_decodes == 0
    assert second.row.tolist() == [1]
    assert first.tokens.tolist() == [PLACEHOLDER] and first.num_decodes == 1
    assert not second.row_starts and not len(second.copies)


def test_copies_run_in_order() -> None:
    """A page copied to and then from carries the first page's bytes."""
    cache = PageCache(LAYOUT, 6, CPU)
    for page in range(6):
        cache.arena[page] = page
    space = _array(0, 0, 0)
    cache.copy(Copies(source_space=space, source=_array(1, 2, 5), target_space=space, target=_array(2, 3, 4),
                      ticket=np.arange(3)))
    assert cache.arena[:, 0].tolist() == [0, 1, 1, 1, 5, 5]


@pytest.mark.parametrize("num_tokens, counts", [(3, [3]), (8, [8]), (19, [8, 8, 3]), (99, [8, 8, 8, 8])])
def test_idle_prompts_are_as_many_tokens_as_fit(num_tokens: int, counts: list[int]) -> None:
    plan = idle_prompts(num_tokens, most_rows=4, most=8)
    assert plan.count.tolist() == counts and plan.num_tokens == sum(counts) and not plan.sample.any()


def test_regions_do_not_overlap() -> None:
    """Every (layer, slot) has bytes of its own in a page of its group."""
    cache = PageCache(LAYOUT, 2, CPU)
    cache.arena.zero_()
    for group in LAYOUT.groups:
        cache.arena.zero_()
        for region in group.regions:
            view = cache.region(region.layer, region.slot)
            assert view.shape == (2, region.num_bytes) and not view.any()
            view.fill_(1)


@pytest.mark.parametrize("device", [CPU, *on_gpu([CUDA])], ids=str)
def test_copies_go_to_the_host_and_back(device: torch.device) -> None:
    """In order: what left in the first copy is what the last brings, although its page was reused between."""
    cache = PageCache(LAYOUT, 3, device, 4)
    for page in range(3):
        cache.arena[page] = page
    cache.copy(Copies(source_space=_array(0, 0, 1), source=_array(1, 2, 3), target_space=_array(1, 0, 0),
                      target=_array(3, 1, 2), ticket=np.arange(3)))
    assert cache.arena[:, 0].tolist() == [0, 2, 1] and cache.host[3, 0] == 1
    assert cache.host.is_pinned() == (device.type == "cuda")


def test_other_spaces_are_refused() -> None:
    cache = PageCache(LAYOUT, 2, CPU)
    one = _array(1)
    with pytest.raises(AssertionError):
        cache.copy(Copies(source_space=one, source=one, target_space=one, target=one, ticket=np.arange(1)))
