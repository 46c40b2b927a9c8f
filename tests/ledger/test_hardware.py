"""Protects the device table: figures as the data sheets state them, and helpful misses."""

import re
import tomllib
from pathlib import Path

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.spec import hardware as table
from ridgeline.spec.hardware import LINKS, hardware, hardware_names

FOLDER = Path(table.__file__).parent / "hardware"


@pytest.mark.parametrize(("name", "balance"), [
    ("h100", 295), ("a100-80gb", 153), ("l40s", 419), ("H200", 206), ("tpu-v5e", 240), ("mi300x", 247)])
def test_the_ridge_is_where_the_data_sheet_puts_it(name: str, balance: float) -> None:
    """S03, S04, S05: dense FLOP/s over bytes/s; TPU v5e's 240 is the scaling book's."""
    assert hardware(name).balance() == pytest.approx(balance, rel=0.005)


@pytest.mark.parametrize(("written", "name"), [
    ("h100", "H100 SXM"), ("H100 SXM5", "H100 SXM"), ("h100_80gb", "H100 SXM"), ("H100-SXM-80GB", "H100 SXM"),
    ("NVIDIA H100 PCIe", "H100 PCIe"), ("H200-SXM-141GB", "H200"), ("A100-40GB", "A100 40GB SXM"),
    ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"), ("A100-80GB (330 W cap)", "A100 80GB SXM at 330 W"),
    ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("RTX PRO 6000 Blackwell", "RTX PRO 6000 Blackwell"),
    ("b200_sxm", "B200"), ("gb300", "GB300"), ("Apple M4 Max", "Apple M4 Max"),
    ("AMD Instinct MI300X", "MI300X")])
def test_names_as_people_write_them_reach_the_device(written: str, name: str) -> None:
    assert hardware(written).name == name


@pytest.mark.parametrize("name", hardware_names())
def test_every_device_is_whole_and_every_figure_has_a_source(name: str) -> None:
    """Rates grow as numbers get smaller, a driver reports about what was sold, and no line of a file states a
    figure without a comment."""
    device = hardware(name)
    assert 1e11 < device.bytes_per_s < 1e13 and device.marketed_bytes >= 16e9
    rates = device.flops_per_s
    assert rates.get("float32", 0) <= min(rates.get("bfloat16", 1e18), rates.get("float16", 1e18))
    assert rates.get("bfloat16", 0) <= rates.get("float8_e4m3fn", 1e18) <= rates.get("float4_e2m1fn", 1e18)
    assert set(device.links) <= set(LINKS)
    if device.usable_bytes is not None:
        assert 0.98 < device.usable_bytes / device.marketed_bytes < 1.08
    for line in (FOLDER / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        assert not re.match(r"\w+ = [0-9]", line) or "  # " in line, line
        if figure := re.match(r"(\w+) = [0-9]", line):
            assert (figure[1] in device.assumed) == ("assumed" in line), line


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'h100'"):
        hardware("h1000")
    with pytest.raises(ConfigError, match="did you mean 'rtx-4090'"):
        hardware("rtx-4900")


def test_no_two_devices_share_a_name() -> None:
    every = [name for path in FOLDER.glob("*.toml") for name in
             {path.stem, *tomllib.loads(path.read_text(encoding="utf-8"))["aliases"]}]
    assert len(every) == len(set(every)) and all(hardware(name) for name in every)


def test_a_rate_that_a_device_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"A100 80GB SXM has no float8_e4m3fn arithmetic.*bfloat16"):
        hardware("a100").rate("float8_e4m3fn")
    assert hardware("a100").peak_rate == 312e12
    assert hardware("h100").links["device"] == 450e9 and "device" not in hardware("l40s").links
