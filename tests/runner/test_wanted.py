"""Protects which tokens of a step go on to its end, and where they stand there, against a slow twin."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.runner.wanted import Wanted
from ridgeline.schedule.plan import Copies, StepPlan

ROWS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.booleans()), min_size=1, max_size=6)


def plan_of(counts: list[int]) -> StepPlan:
    zeros = np.zeros(len(counts), np.int32)
    return StepPlan(step=0, request=zeros.astype(np.int64), row=zeros, start=zeros, draft=zeros,
                    num_decodes=0, count=np.array(counts, np.int32), sample=zeros.astype(np.uint8),
                    row_starts=(), tables=(), tokens=np.zeros(sum(counts), np.int32), copies=Copies.none())


@given(ROWS)
def test_equals_going_through_the_rows(rows: list[tuple[int, int, bool]]) -> None:
    """(tokens of a row, how many at its end are wanted, or all of them)"""
    counts, tails = [count for count, _, _ in rows], [min(tail, count) for count, tail, _ in rows]
    found = Wanted.of(plan_of(counts), np.array(tails), np.array([whole for *_, whole in rows]))
    tokens, spans, lasts, first = list[int](), list[list[int]](), list[int](), 0
    for (count, _, whole), tail in zip(rows, tails, strict=True):
        own = list(range(first, first + count))[-(count if whole else tail):]
        spans.append(own)
        tokens += own
        lasts += own[-tail:]
        first += count
    named = np.arange(sum(counts)) if found.tokens is None else found.tokens
    assert (found.tokens is None) == (len(tokens) == sum(counts)) and named.tolist() == tokens
    assert [named[found.span(i)].tolist() for i in range(len(rows))] == spans
    assert named[found.last(np.array(tails))].tolist() == lasts
