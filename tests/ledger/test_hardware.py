"""Protects the device table: figures as the data sheets state them, and helpful misses."""

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.spec.hardware import hardware


@pytest.mark.parametrize(("name", "balance"), [
    ("h100", 295), ("a100-80gb", 153), ("l40s", 419), ("H200", 206)])
def test_the_ridge_is_where_the_data_sheet_puts_it(name: str, balance: float) -> None:
    """S03, S04, S05: dense FLOP/s over bytes/s."""
    assert hardware(name).balance() == pytest.approx(balance, rel=0.005)


def test_aliases_reach_the_same_device() -> None:
    assert hardware("h100") == hardware("H100 SXM5") == hardware("h100_80gb")


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'h100'"):
        hardware("h1000")


def test_a_rate_that_a_device_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"A100 80GB SXM has no float8_e4m3fn arithmetic.*bfloat16"):
        hardware("a100").rate("float8_e4m3fn")
    assert hardware("a100").peak_rate == 312e12
