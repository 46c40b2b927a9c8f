"""HardwareSpec: one device as numbers. The facts are in hardware/*.toml, each with its source; a CPU's come
from a measured profile (`ledger.profile`), since no data sheet states what two threads of a shared server
reach."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ridgeline.base.errors import ConfigError
from ridgeline.base.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """One device.

    marketed_bytes: memory by the data sheet (80e9 for an H100). usable_bytes: total as a driver reports it,
    None when not known. bytes_per_s: memory bandwidth. flops_per_s: dense rate by dtype name (spec.quant's
    names, and "tfloat32").
    """

    name: str
    marketed_bytes: int
    usable_bytes: int | None
    bytes_per_s: float
    flops_per_s: Mapping[str, float]

    def rate(self, dtype: str) -> float:
        """Dense FLOP/s in `dtype`; ConfigError names the dtypes that the device has."""
        if dtype not in self.flops_per_s:
            known = ", ".join(sorted(self.flops_per_s))
            raise ConfigError(f"{self.name} has no {dtype} arithmetic: it has {known}")
        return self.flops_per_s[dtype]

    def fastest(self, dtypes: Iterable[str]) -> float:
        """The highest dense FLOP/s among those of `dtypes` that the device has; it must have one."""
        return max(self.flops_per_s[dtype] for dtype in dtypes if dtype in self.flops_per_s)

    @property
    def peak_rate(self) -> float:
        """The highest dense FLOP/s among 16- and 32-bit floats: no plain matrix product is faster."""
        return self.fastest(("float32", "bfloat16", "float16"))

    def balance(self, dtype: str = "bfloat16") -> float:
        """FLOP a byte at the ridge of the roofline."""
        return self.rate(dtype) / self.bytes_per_s


def read_hardware(path: Path) -> HardwareSpec:
    """One TOML file of hardware/."""
    with path.open("rb") as file:
        data = tomllib.load(file)
    memory = data["memory"]
    return HardwareSpec(name=data["name"], marketed_bytes=int(memory["marketed_bytes"]),
                        usable_bytes=memory.get("usable_bytes"), bytes_per_s=float(memory["bytes_per_s"]),
                        flops_per_s={dtype: float(rate) for dtype, rate in data["flops_per_s"].items()})


def _files() -> list[Path]:
    return sorted((Path(__file__).parent / "hardware").glob("*.toml"))


@cache
def _names() -> Table[Path]:
    found = {}
    for path in _files():
        with path.open("rb") as file:
            aliases = tomllib.load(file)["aliases"]
        found.update(dict.fromkeys((path.stem, *aliases), path))
    return Table("device", found)


def hardware(name: str) -> HardwareSpec:
    """By file name or alias ("h100", "a100-80gb"); a wrong name gets the nearest."""
    return read_hardware(_names()[name.strip().lower().replace(" ", "-").replace("_", "-")])


def hardware_names() -> tuple[str, ...]:
    """The devices' own names, one each, for a list or a menu; aliases lead to them too."""
    return tuple(path.stem for path in _files())
