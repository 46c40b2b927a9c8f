"""Quantities as people read them; JSON keeps SI base units beside each text. GB is 1e9 bytes, GiB 2^30."""

import math

from ridgeline.base.units import GB, GIB, KB, KIB, MB, MIB, TB, TIB
from ridgeline.planner.lab import Value

_DECIMAL = (("TB", TB), ("GB", GB), ("MB", MB), ("kB", KB), ("B", 1))
_BINARY = (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_PREFIXES = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_PREFIXED = ("FLOP", "FLOP/s", "B/s")


def texts(value: Value, unit: str) -> tuple[str, str]:
    """A value for people, and the same in a second unit where one is in use (GiB beside GB), else ""."""
    if isinstance(value, bool):
        return ("yes" if value else "no"), ""
    if isinstance(value, str):
        return value, ""
    if not math.isfinite(value):
        return ("no limit" if value > 0 else "none"), ""
    stem, slash, per = unit.partition("/")
    if stem == "bytes":
        tail = slash + per
        return _in(value, _DECIMAL) + tail, (_in(value, _BINARY) + tail if abs(value) >= KIB else "")
    if unit == "s":
        return _in(value, _TIMES), _clock(value)
    if unit in _PREFIXED:
        size = next(((name, size) for name, size in _PREFIXES if abs(value) >= size), ("", 1.0))
        return f"{figures(value / size[1])} {size[0]}{unit}", ""
    if unit == "share":
        return f"{figures(100 * value)}%", ""
    if unit == "USD":
        return f"${value:,.2f}" if abs(value) >= 0.1 else f"${figures(value)}", ""
    whole = unit.isalpha() and value == int(value)  # so many tokens, sequences
    unit = unit.removesuffix("s") if whole and value == 1 else unit
    return f"{figures(int(value) if whole else value)}{'' if unit == '%' else ' '}{unit}".rstrip(), ""


def figures(value: float) -> str:
    """Three significant figures, whole numbers whole, thousands apart: 0.0034, 4.80, 63.8, 12,484."""
    if isinstance(value, int) or abs(value) >= 999.5:
        return f"{value:,.0f}"
    if value == 0 or abs(value) >= 1e-4:
        return f"{value:#.3g}".rstrip(".") if value else "0"
    return f"{value:.2e}"


def _in(value: float, scale: tuple[tuple[str, float], ...]) -> str:
    if not value:
        return next(f"0 {name}" for name, size in scale if size == 1)
    name, size = next((s for s in scale if abs(value) >= 0.9995 * s[1]), scale[-1])
    amount = value / size
    return f"{figures(int(amount) if amount == int(amount) and size == 1 else amount)} {name}"


def _clock(seconds: float) -> str:
    if seconds >= 7200:
        return f"{figures(seconds / 3600)} h"
    return f"{figures(seconds / 60)} min" if seconds >= 120 else ""
