"""Units. GB is 1e9 bytes and GiB is 2^30; a text never mixes them up."""

import re

from ridgeline.base.errors import ConfigError

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
_SUFFIX = {"": 1, "b": 1, "k": KB, "kb": KB, "m": MB, "mb": MB, "g": GB, "gb": GB, "t": TB, "tb": TB,
           "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}


def parse_bytes(text: str | int) -> int:
    """'2GiB', '512MB', '1e9' or an int, as bytes."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match.group(2).lower() not in _SUFFIX:
        raise ConfigError(f"cannot read {text!r} as a size: write it like 512MB, 2GiB or 1000000")
    return int(float(match.group(1)) * _SUFFIX[match.group(2).lower()])


def parse_count(text: str | int) -> int:
    """'32k' or '32K' is 32 * 1024 tokens, as vLLM reads it upper-case; a plain int stays."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*([0-9]+)\s*([kKmM]?)\s*", text)
    if match is None:
        raise ConfigError(f"cannot read {text!r} as a count: write it like 4096 or 32k")
    return int(match.group(1)) * {"": 1, "k": 1024, "m": 1024**2}[match.group(2).lower()]


def format_bytes(num_bytes: float) -> str:
    """Decimal units, three figures: 92.1 MB."""
    for name, unit in (("TB", TB), ("GB", GB), ("MB", MB), ("kB", KB)):
        if abs(num_bytes) >= unit:
            size = num_bytes / unit
            return f"{size:.3g} {name}" if size < 100 else f"{size:.0f} {name}"
    return f"{num_bytes:.0f} B"
