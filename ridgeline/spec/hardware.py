"""HardwareSpec: one device as numbers. The facts are in hardware/*.toml, each with its source; a CPU's come
from a measured profile (`ledger.profile`), since no data sheet states what two threads of a shared server
reach."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ridgeline.base.errors import ConfigError

LINKS = ("device", "host", "network")
_NO_LINKS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """One device.

    marketed_bytes: memory by the data sheet (80e9 for an H100). usable_bytes: total as a driver reports it,
    None when not known. bytes_per_s: memory bandwidth. flops_per_s: dense rate by dtype name (spec.quant's
    names, "tfloat32", and "float4_e2m1fn" for NVFP4 and MXFP4). links: bytes/s in one direction per device,
    by what it leads to: "device" (NVLink, xGMI, ICI), "host" (PCIe, C2C), "network"; absent where it has none
    or none is known. price_usd_per_hour: one device's, an input with its source and date; None where none is.
    assumed: names of figures that nobody's page states ("float32", "bytes_per_s", "marketed_bytes").
    """

    name: str
    marketed_bytes: int
    usable_bytes: int | None
    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    links: Mapping[str, float] = field(default_factory=lambda: _NO_LINKS)
    price_usd_per_hour: float | None = None
    assumed: tuple[str, ...] = ()

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
    data = _toml(path)
    memory, links = data["memory"], data.get("links", {})
    assert set(links) <= set(LINKS), path
    return HardwareSpec(name=data["name"], marketed_bytes=int(memory["marketed_bytes"]),
                        usable_bytes=memory.get("usable_bytes"), bytes_per_s=float(memory["bytes_per_s"]),
                        flops_per_s={dtype: float(rate) for dtype, rate in data["flops_per_s"].items()},
                        links={to: float(rate) for to, rate in links.items()},
                        price_usd_per_hour=data.get("price_usd_per_hour"),
                        assumed=tuple(data.get("assumed", ())))


def _toml(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


def _files() -> list[Path]:
    return sorted((Path(__file__).parent / "hardware").glob("*.toml"))


def hardware(name: str) -> HardwareSpec:
    """By file name or alias as people write it ("h100", "NVIDIA A100-SXM4-80GB", "RTX_4090"); a wrong name
    gets the nearest."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    plain = re.sub(r"^(nvidia|amd|google|apple|geforce)-(?=.)", "", plain)
    for path in _files():
        text = path.read_text(encoding="utf-8")  # most files are not parsed
        if path.stem == plain or (f'"{plain}"' in text and plain in _names(path)):
            return read_hardware(path)
    known = {one: path.stem for path in _files() for one in _names(path)}
    near: dict[str, str] = {}
    for one in get_close_matches(plain, known, n=6):
        near.setdefault(known[one], repr(one))
    hint = f"did you mean {' or '.join(near.values())}? " if near else ""
    raise ConfigError(f"no device named {name!r}: {hint}known are {', '.join(hardware_names())}")


def _names(path: Path) -> tuple[str, ...]:
    return path.stem, *_toml(path)["aliases"]


def hardware_names() -> tuple[str, ...]:
    """The devices' own names, one each, for a list or a menu; aliases lead to them too."""
    return tuple(path.stem for path in _files())
