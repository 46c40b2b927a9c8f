"""Protects two comparisons: the load from which one way to serve beats another, and what memory goes to."""

from dataclasses import replace

import pytest

from ridgeline.sim.fragments import compare_memory
from ridgeline.sim.node import Serving
from ridgeline.sim.outcome import Outcome
from ridgeline.sim.pays import pays_from
from ridgeline.sim.run import simulate
from tests.sim.helpers_sim import machine, workload

SOME = simulate(machine(), Serving(), workload((0.0, 4, 2)))


@pytest.mark.parametrize("border", [0.3, 1.0, 7.7, 31.0])
def test_a_split_pays_from_where_it_gives_more(border: float) -> None:
    def at(most: float):  # type: ignore[no-untyped-def]
        return lambda rate: replace(SOME, goodput=min(rate, most))

    found = pays_from(at(1e9), at(border), 0.25, 64.0)
    assert found is not None and border * 1.01 <= found <= border * 1.1
    assert pays_from(at(border), at(1e9), 0.25, 64.0) is None


def test_what_pays_everywhere_pays_from_the_lowest_load() -> None:
    def good(times: float):  # type: ignore[no-untyped-def]
        def outcome(rate: float) -> Outcome:
            return replace(SOME, goodput=times * rate)
        return outcome

    assert pays_from(good(2.0), good(1.0), 0.25, 64.0) == pytest.approx(0.25)


def test_pages_hold_more_requests_than_runs_do() -> None:
    """Runs for the longest waste most inside; pages waste less than a block a request and nothing outside."""
    load = workload(*[(0.0, 8 + 13 * i % 40, 3 + 29 * i % 60) for i in range(40)])
    longest, own, pages = compare_memory(machine(num_pages=81, num_rows=32), Serving(), load)
    for one in (longest, own, pages):
        assert min(one.used, one.internal, one.external, one.free) >= 0
        assert one.used + one.internal + one.external + one.free <= 1 + 1e-9
        assert 0 < one.mean_residents <= one.most_residents <= 32
    assert longest.mean_residents < own.mean_residents < pages.mean_residents
    assert longest.internal > own.internal > pages.internal and pages.external == 0
    assert longest.used < own.used < pages.used
