"""Which rows share what: never a page that is not in all of them, and all that can be read together."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.kernels.cascade import share
from ridgeline.runner.prefixes import Prefixes, SharedPrefixes
from ridgeline.schedule.plan import TableDelta
from ridgeline.spec.cache import plan_layout
from tests.helpers import tiny_spec

PAGE, PIECE = 4, 8
LAYOUT = plan_layout(tiny_spec(windows=(9, None), num_layers=2).cache(4), block_tokens=PAGE)


def followed(tables: list[list[int]], least: int = 1) -> Prefixes:
    """Of rows with these pages."""
    made = Prefixes(LAYOUT, len(tables), 64, piece=PIECE, least=least)
    news = [(row, at, page) for row, pages in enumerate(tables) for at, page in enumerate(pages)]
    row, index, page = (np.array(part, np.int32) for part in zip(*news))
    made.update((TableDelta(row=row, index=index, page=page),) * len(LAYOUT.groups), fresh=True)
    return made


def families(draw: st.DrawFn) -> list[list[int]]:
    """Tables whose rows begin with another's, whole pages of it, and go on with pages of their own."""
    tables: list[list[int]] = []
    fresh = iter(range(1, 1000))
    for _ in range(draw(st.integers(2, 7))):
        parent = tables[draw(st.integers(0, len(tables) - 1))] if tables and draw(st.booleans()) else []
        kept = draw(st.integers(0, len(parent)))
        own = draw(st.integers(0 if kept else 1, 12 - min(kept, 11)))
        tables.append(parent[:kept] + [next(fresh) for _ in range(own)])
    return tables


@given(st.data())
def test_groups_have_their_pages_in_common(data: st.DataObject) -> None:
    """A row is in one group, with whole pieces before its new token, the same in all of the group, and no
    piece more would be; rows with the same first piece are together."""
    tables = data.draw(st.composite(families)())
    order = data.draw(st.permutations(range(len(tables))))
    starts = [data.draw(st.integers(1, PAGE * len(tables[row]) - 1)) for row in order]
    found = followed(tables).of(np.array(order, np.int32), np.array(starts, np.int32))

    def piece(place: int, number: int) -> tuple[int, ...] | None:
        """The pages of a piece, None where it reaches the new token."""
        pages = tables[order[place]][2 * number: 2 * number + 2]
        return tuple(pages) if PIECE * (number + 1) <= starts[place] else None

    grouped = [place for places, _ in found for place in places]
    assert len(grouped) == len(set(grouped))
    for places, tokens in found:
        assert len(places) > 1 and tokens >= PIECE and tokens % PIECE == 0
        for number in range(tokens // PIECE):
            (common,) = {piece(place, number) for place in places}
            assert common is not None
        after = {piece(place, tokens // PIECE) for place in places}
        assert len(after) > 1 or after == {None} or tokens == PIECE * 8
    for first in range(len(order)):
        alike = [p for p in range(len(order)) if piece(p, 0) is not None and piece(p, 0) == piece(first, 0)]
        assert len(alike) < 2 or tuple(alike) in {places for places, _ in found}


def test_kept_until_rows_change_and_only_where_it_pays() -> None:
    """Two rows of five common pages spare 16 tokens."""
    tables = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7], [9, 10, 11]]
    rows, starts = np.array([2, 0, 1], np.int32), np.array([9, 21, 20], np.int32)
    one = followed(tables, least=8)
    assert one.of(rows, starts) == (((1, 2), 16),) and one.of(rows, starts + 1) is one.of(rows, starts)
    assert one.of(rows[:2], starts[:2]) == ()
    assert followed(tables, least=17).of(rows, starts) == ()
    row, index, page = (np.array([n], np.int32) for n in (1, 3, 8))
    news = TableDelta(row=row, index=index, page=page)
    one.update((news,) * len(LAYOUT.groups), fresh=True)
    assert one.of(rows, starts) == (((1, 2), 8),)


def test_what_a_graph_finds() -> None:
    """The same as `share` makes, at the places that stay, whatever was held before."""
    prefixes = followed([[1]] * 9)
    held = SharedPrefixes(prefixes, max_rows=9, group_heads=32, device=torch.device("cpu"))
    for groups in ((((0, 1, 2), 24), ((4, 7), 8)), (((3, 5), 16),), (((0, 1, 2, 3, 4, 5, 6, 7, 8), 64),)):
        held.hold(groups)
        got = held.shared(9)
        want = share(groups, num_rows=9, num_heads=32, piece=PIECE, device=torch.device("cpu"))
        assert want is not None and int(got.total) == len(want.work) and got.most == 8
        assert torch.equal(got.work[: len(want.work)], want.work) and torch.equal(got.skip_S, want.skip_S)
        assert torch.equal(got.members_L[: len(want.members_L)], want.members_L)
