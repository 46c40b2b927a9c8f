"""Protects how quantities read: both readings of a byte count, the right prefix, three figures."""

import math

import pytest

from ridgeline.planner.lab import Control, Value
from ridgeline.web.people import texts
from ridgeline.web.show import control_data


@pytest.mark.parametrize(("value", "unit", "shown"), [
    (131072, "bytes", ("131 kB", "128 KiB")),
    (1073741824, "bytes", ("1.07 GB", "1.00 GiB")),
    (999_999_999, "bytes", ("1.00 GB", "954 MiB")),
    (80_000_000_000, "bytes", ("80.0 GB", "74.5 GiB")),
    (576, "bytes", ("576 B", "")),
    (0, "bytes", ("0 B", "")),
    (0.0, "s", ("0 s", "")),
    (3.35e12, "bytes/s", ("3.35 TB/s", "3.05 TiB/s")),
    (0.0048, "s", ("4.80 ms", "")),
    (0.33512, "s", ("335 ms", "")),
    (6e-6, "s", ("6.00 µs", "")),
    (3.2e-10, "s", ("0.320 ns", "")),
    (150.0, "s", ("150 s", "2.50 min")),
    (10800.0, "s", ("10,800 s", "3.00 h")),
    (1.49e14, "FLOP", ("149 TFLOP", "")),
    (4.0e12, "FLOP/s", ("4.00 TFLOP/s", "")),
    (12484.0, "tok/s", ("12,484 tok/s", "")),
    (162.43, "tok/s", ("162 tok/s", "")),
    (59, "sequences", ("59 sequences", "")),
    (0.30812, "", ("0.308", "")),
    (-0.5, "", ("-0.500", "")),
    (2.5e-7, "", ("2.50e-07", "")),
    (0, "", ("0", "")),
    (41.237, "%", ("41.2%", "")),
    (0.30812, "share", ("30.8%", "")),
    (0.00406, "share", ("0.406%", "")),
    (1, "sequences", ("1 sequence", "")),
    (1.0, "days", ("1 day", "")),
    (1.5, "days", ("1.50 days", "")),
    (1, "tok/s", ("1 tok/s", "")),
    (0.418, "USD", ("$0.42", "")),
    (0.00123, "USD", ("$0.00123", "")),
    (True, "", ("yes", "")),
    (False, "", ("no", "")),
    ("memory", "", ("memory", "")),
    (math.inf, "sequences", ("no limit", "")),
    (math.nan, "s", ("none", "")),
])  # fmt: skip
def test_a_quantity_reads_as_people_write_it(value: Value, unit: str, shown: tuple[str, str]) -> None:
    assert texts(value, unit) == shown


def test_a_logarithmic_slider_stops_at_whole_octaves() -> None:
    """Between 512 and 131,072 every power of two can be chosen with the slider, and the default too."""
    control = Control(key="n", label="N", kind="number", default=3000, low=512, high=131072, step=1, log=True)
    stops = control_data(control, 3000)["stops"]
    assert {512 * 2**i for i in range(9)} | {3000} <= set(stops)
    assert stops == sorted(set(stops)) and all(stop == int(stop) for stop in stops) and len(stops) < 80
