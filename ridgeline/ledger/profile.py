"""A machine's measured profile: a named JSON file, written by `bench`, read by whoever prices a step.

Never hidden state: nothing is read unless its name or path is given, and whatever used it says so.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import Any

from ridgeline.base.config import cache_dir
from ridgeline.base.errors import ConfigError
from ridgeline.ledger.efficiency import Calibration, Efficiency, Levels, Waking
from ridgeline.spec.hardware import HardwareSpec

FORMAT = 1
_NO_TABLES: Mapping[str, "StepTable"] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Measured seconds of whole steps of one model, as it was run.

    rows -> seconds of a step of so many decodes, each with `context` tokens behind it; chunk -> seconds of a
    step with one prompt chunk of so many tokens and nothing before it. Both ascending.
    """

    rows: tuple[int, ...]
    row_s: tuple[float, ...]
    context: int
    chunk: tuple[int, ...]
    chunk_s: tuple[float, ...]

    def __post_init__(self) -> None:
        for counts, seconds in ((self.rows, self.row_s), (self.chunk, self.chunk_s)):
            if len(counts) != len(seconds) or len(counts) < 2 or list(counts) != sorted(set(counts)):
                raise ConfigError("a step table needs two or more ascending counts, with one time for each")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """What one machine was measured to do with `threads` compute threads.

    read_bytes_per_s: streaming read. flops_per_s: matrix product by dtype name. about: where and with what it
    was measured (processor, versions, commit). tables: by a name of the model and its numeric path.
    calibration: what its steps reach of their floors, where `ridgeline calibrate` measured it.
    """

    name: str
    threads: int
    memory_bytes: int
    read_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    about: Mapping[str, str]
    tables: Mapping[str, StepTable] = field(default_factory=lambda: _NO_TABLES)
    calibration: Calibration | None = None

    def with_table(self, key: str, table: StepTable) -> "MachineProfile":
        """The same and one table more; a table of that key is replaced."""
        return replace(self, tables={**self.tables, key: table})

    def text(self) -> str:
        """The rates in a line."""
        rates = ", ".join(f"{rate / 1e9:.3g} {dtype}" for dtype, rate in self.flops_per_s.items())
        return f"read {self.read_bytes_per_s / 1e9:.3g} GB/s, products in GFLOP/s {rates}"

    def hardware(self) -> HardwareSpec:
        """The same as a device, for the roofline."""
        return HardwareSpec(name=self.name, marketed_bytes=self.memory_bytes, usable_bytes=self.memory_bytes,
                            bytes_per_s=self.read_bytes_per_s, flops_per_s=dict(self.flops_per_s))


def profile_path(name: str) -> Path:
    """Where a profile of that name lies; a name with a folder in it, or with .json at its end, is a path of
    its own."""
    if "/" in name or name.endswith(".json"):
        return Path(name)
    return cache_dir() / "profiles" / f"{name}.json"


def save_profile(profile: MachineProfile) -> Path:
    """Write a profile under its name, replacing an older one whole; returns the path."""
    path = profile_path(profile.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {f.name: getattr(profile, f.name) for f in dataclasses.fields(profile)}
    fields |= {"flops_per_s": dict(profile.flops_per_s), "about": dict(profile.about),
               "tables": {key: dataclasses.asdict(table) for key, table in profile.tables.items()},
               "calibration": profile.calibration and _calibration_fields(profile.calibration)}
    text = json.dumps({"format": FORMAT, **fields}, indent=1, allow_nan=False)
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=path.name, delete=False) as part:
        part.write(text + "\n")
    Path(part.name).replace(path)
    return path


def _table(fields: dict[str, Any]) -> StepTable:
    context = int(fields.pop("context"))
    return StepTable(context=context, **{key: tuple(values) for key, values in fields.items()})


def _calibration_fields(calibration: Calibration) -> dict[str, Any]:
    def levels(of: Levels) -> dict[str, Any]:
        factors = [{f.name: getattr(one, f.name) for f in dataclasses.fields(one)}
                   | {"sources": dict(one.sources)} for one in of.factors]
        return {"tokens": of.tokens, "factors": factors}

    return {"decodes": levels(calibration.decodes), "prompts": levels(calibration.prompts),
            "waking": dataclasses.asdict(calibration.waking), "error": calibration.error,
            "num_points": calibration.num_points, "measured": dict(calibration.measured)}


def _calibration(fields: dict[str, Any] | None) -> Calibration | None:
    if fields is None:
        return None

    def levels(of: dict[str, Any]) -> Levels:
        factors = (Efficiency(**{**one, "band": tuple(one["band"])}) for one in of["factors"])
        return Levels(tokens=tuple(of["tokens"]), factors=tuple(factors))

    decodes, prompts = levels(fields.pop("decodes")), levels(fields.pop("prompts"))
    return Calibration(decodes=decodes, prompts=prompts, waking=Waking(**fields.pop("waking")), **fields)


def load_profile(name: str) -> MachineProfile:
    """A profile by name or path. ConfigError when there is none, or it is not one that this version wrote."""
    path = profile_path(name)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("format") != FORMAT:
            raise ConfigError("another format")
        tables = {key: _table(fields) for key, fields in data.pop("tables").items()}
        calibration = _calibration(data.pop("calibration", None))
        return MachineProfile(**data, tables=tables, calibration=calibration)
    except FileNotFoundError:
        raise ConfigError(f"no profile {path}: measure this machine with "
                          f"`ridgeline bench probe --profile {name}`") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a machine profile ({error}): delete it and measure again") from None
