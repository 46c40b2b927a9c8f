"""Percentiles against numpy, and latencies by their definitions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.base.stats import e2e_s, latencies, percentiles, tpot_s, ttft_s
from tests.base.test_trace import REQUEST


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_percentiles_are_numpys(values: list[float]) -> None:
    got = percentiles(values, (0, 50, 99.9, 100))
    assert list(got) == ["p0", "p50", "p99.9", "p100"]
    assert list(got.values()) == pytest.approx(np.percentile(values, [0, 50, 99.9, 100]).tolist())


def test_no_values_have_no_percentiles() -> None:
    assert percentiles([]) == {}


def test_latencies_by_definition() -> None:
    """E2E = TTFT + (tokens - 1) * TPOT; what did not end well does not count."""
    record = replace(REQUEST, num_output=5, token_times_s=(1.0, 1.25, 1.5, 1.75, 2.0))
    assert (ttft_s(record), tpot_s(record), e2e_s(record)) == (0.5, 0.25, 1.5)
    assert e2e_s(record) == ttft_s(record) + 4 * tpot_s(record)
    found = latencies([record, replace(record, finish="abort", finished_s=99.0)], (50,))
    assert found == {"ttft": {"p50": 0.5}, "tpot": {"p50": 0.25}, "itl": {"p50": 0.25}, "e2e": {"p50": 1.5}}
    silent = replace(record, num_output=0, first_token_s=None, token_times_s=())
    assert ttft_s(silent) is None and tpot_s(silent) is None
    assert latencies([silent], (50,)) == {"ttft": {}, "tpot": {}, "itl": {}, "e2e": {"p50": 1.5}}
