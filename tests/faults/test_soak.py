"""Protects a server that runs for long: half an hour at 80 % of its capacity without drift or growth."""

import numpy as np
import pytest

from tests.faults.soak import MINUTES, WINDOWS, Window, judge, run


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_half_an_hour_at_four_fifths_of_capacity() -> None:
    run(MINUTES)


def windows(*, slower: float = 0.0, later: float = 0.0, leak: int = 0, machine: float = 0.0) -> list[Window]:
    """As a good server gives them, and what gets worse from the first window to the last: the tail of further
    tokens, all first ones and the machine's own work, as shares; what the smaller process holds, in bytes."""
    dice, found = np.random.default_rng(0), []
    for part in np.linspace(0, 1, WINDOWS).tolist():
        ttft_s, tpot_s = 0.015 + dice.exponential(0.005, 3000), dice.normal(0.011, 0.0003, 3000)
        ttft_s *= 1 + later * part
        tpot_s[-60:] *= 1 + slower * part
        piece_s = dice.normal(2e-4, 2e-5, 1000) * (1 + machine * part)
        found.append(Window(ttft_s=ttft_s.tolist(), tpot_s=tpot_s.tolist(), piece_s=piece_s.tolist(),
                            held=[130_000_000 + int(leak * part), 400_000_000]))
    return found


def test_a_planted_drift_and_a_planted_leak_are_found() -> None:
    judge(windows())
    for worse in (windows(slower=0.4), windows(later=0.6), windows(leak=5_000_000)):
        with pytest.raises(AssertionError, match=r"p99|grown"):
            judge(worse)


def test_a_machine_that_slows_is_forgiven_and_hides_no_drift() -> None:
    """Up to a bound: no server passes that slowed by more, nor one beside a machine that broke down."""
    with pytest.raises(AssertionError, match="ttft_s"):
        judge(windows(later=0.3))
    judge(windows(later=0.3, slower=0.3, machine=0.3))
    for worse in (windows(later=0.8, machine=0.3), windows(later=0.8, machine=5.0),
                  windows(slower=0.9, machine=5.0)):
        with pytest.raises(AssertionError, match="the machine's own work"):
            judge(worse)
    judge(windows(machine=-0.3))
