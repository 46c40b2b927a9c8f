"""The one token budget of a step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.schedule.budget import share_tokens

WANTED = st.lists(st.integers(1, 50), max_size=12)


def slow_share(wanted: list[int], left: int, whole: bool) -> list[int]:
    """One row after another, by hand."""
    shared, stopped = [], False
    for want in wanted:
        got = 0 if stopped else min(want, left)
        if whole and got < want:
            got, stopped = 0, True
        elif got > 1 and got == want - 1:
            got, left = got - 1, left - 1
        shared.append(got)
        left -= got
    return shared


@given(wanted=WANTED, budget=st.integers(0, 120), whole=st.booleans())
def test_sharing_equals_serving_one_by_one(wanted: list[int], budget: int, whole: bool) -> None:
    got = share_tokens(np.array(wanted, np.int64), budget, whole=whole).tolist()
    assert got == slow_share(wanted, budget, whole) and sum(got) <= budget
