"""Protects the closed forms of a step's sums against counting one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.ledger.sums import Summer
from ridgeline.spec.cost import CONTEXT, PAIRS, PROJECTS, ROWS, TOKENS

ROW = st.tuples(st.integers(0, 40), st.integers(1, 20))
DECODE = st.tuples(st.integers(0, 40), st.just(1))


def _count(start: int, count: int, window: int | None) -> tuple[int, int]:
    """(pairs, keys read) of one row, by looking at every query and key."""
    seen = {(t, s) for t in range(start, start + count) for s in range(t + 1)
            if window is None or s > t - window}
    return len(seen), len({s for _, s in seen})


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=6) | st.lists(DECODE, min_size=1, max_size=6), st.integers(1, 30))
def test_pairs_and_keys_are_what_a_count_gives(rows: list[tuple[int, int]], window: int) -> None:
    sums = Summer((None, window)).sums([s for s, _ in rows], [c for _, c in rows], len(rows))
    for w in (None, window):
        counted = [_count(start, count, w) for start, count in rows]
        assert sums.windows[w] == (sum(p for p, _ in counted), sum(k for _, k in counted))
    assert (sums.tokens, sums.rows, sums.projected) == (sum(c for _, c in rows), len(rows), len(rows))


def test_the_vector_and_the_named_sums_agree() -> None:
    summer = Summer((None, 5))
    start, count = np.array([7, 0], np.int32), np.array([1, 9], np.int32)
    vector, sums = summer.vector(start, count, 1), summer.sums(start, count, 1)
    assert list(vector) == [sums.value(term) for term in summer.terms]


def test_long_contexts_do_not_overflow_the_plan_s_integers() -> None:
    """The plan's arrays are int32; a million tokens of prompt have more pairs than that holds."""
    sums = Summer((None,)).sums(np.array([0], np.int32), np.array([1_000_000], np.int32), 1)
    assert sums.value((PAIRS, None)) == 1_000_000 * 1_000_001 // 2
    assert sums.value((CONTEXT, None)) == sums.value((TOKENS, None)) == 1_000_000


def test_a_step_that_samples_nothing_projects_nothing() -> None:
    sums = Summer((None,)).sums([0, 4], [8, 8], 0)
    assert sums.value((PROJECTS, None)) == 0 and sums.value((ROWS, None)) == 2


@settings(max_examples=30, deadline=None)
@given(st.lists(ROW, min_size=12, max_size=20), st.integers(1, 30))
def test_many_chunks_are_summed_as_few_are(rows: list[tuple[int, int]], window: int) -> None:
    """Both ways of counting, on either side of the number of chunks where one gives way to the other."""
    summer = Summer((None, window))
    start, count = [s for s, _ in rows], [c for _, c in rows]
    parts = [summer.vector([s], [c], 1) for s, c in rows]
    whole = summer.vector(start, count, len(rows))
    assert list(whole[5:]) == list(sum(parts)[5:]) and whole[1] == sum(count)
