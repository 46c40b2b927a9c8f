"""Percentiles against numpy, latencies by their definitions, Little's law against a list of stays."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.base.stats import LittleLaw, e2e_s, latencies, percentiles, tpot_s, ttft_parts, ttft_s
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


def test_the_parts_of_ttft_sum_to_it() -> None:
    """Whatever lay on the way; what is not known of a station adds nothing."""
    record = replace(REQUEST, encoder_s=0.0625, transfer_s=0.03125, preprocess_s=0.015625)
    parts = ttft_parts(record)
    assert list(parts) == ["tokenise", "preprocess", "queue", "schedule", "encoder", "prefill", "transfer"]
    assert list(parts.values()) == [0.125, 0.015625, 0.109375, 0.125, 0.0625, 0.03125, 0.03125]
    assert sum(parts.values()) == ttft_s(record)
    bare = ttft_parts(replace(REQUEST, tokenised_s=None, first_started_s=None))
    assert bare["tokenise"] == bare["schedule"] == 0 and sum(bare.values()) == ttft_s(REQUEST)
    assert ttft_parts(replace(REQUEST, first_token_s=None)) == {}


STAYS = st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), min_size=1, max_size=20)


@given(stays=STAYS, until=st.floats(0, 80))
def test_littles_law_holds_at_any_moment(stays: list[tuple[float, float]], until: float) -> None:
    """Also with some inside still; the number is counted apart from the stays."""
    law, inside = LittleLaw(0.0), 0
    moves = [(come, 1, key) for key, (come, _) in enumerate(stays)]
    moves += [(come + stay, -1, key) for key, (come, stay) in enumerate(stays)]
    for at, change, key in sorted(moves, key=lambda move: (move[0], -move[1])):
        if at > until:
            break
        (law.arrive if change > 0 else law.leave)(key, at)
        inside += change
        law.number(inside, at)
    got = law.report(until)
    here = [min(until, come + stay) - come for come, stay in stays if come <= until]
    assert got["num_in_system"] * got["window_s"] == pytest.approx(sum(here), abs=1e-6)
    assert got["arrival_rate"] * got["window_s"] == pytest.approx(len(here))
    assert sum(here) < 1e-6 or abs(got["difference"]) < 1e-6


def test_littles_law_notices_who_is_counted_wrong() -> None:
    law = LittleLaw(10.0)
    law.arrive("a", 10.0)
    law.number(1, 10.0)
    law.leave("a", 15.0)  # and nobody says that the number fell
    law.leave("never came", 16.0)
    assert law.report(20.0) == {"window_s": 10.0, "arrival_rate": 0.1, "time_in_system_s": 5.0,
                                "num_in_system": 1.0, "difference": 1.0}
