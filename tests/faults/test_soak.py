"""Protects a server that runs for long: half an hour at 80 % of its capacity without drift or growth."""

import pytest

from tests.faults.soak import MINUTES, run


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_half_an_hour_at_four_fifths_of_capacity() -> None:
    run(MINUTES)
