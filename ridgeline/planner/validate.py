"""`ridgeline plan validate POINTS.csv`: published measurements beside what a plan says of them, row by row.

A row with a time or a throughput has a floor, which no measurement may be below, and an estimate; a row with
a size has an estimate alone. What a row leaves open counts as the least for its floor (no prompt, one
sequence, the smaller cache), and where that says nothing of the run, there is no estimate. Columns: id,
model, weights_dtype, kv_dtype, gpu, num_gpus, parallelism, isl, osl, load, metric, value, unit, caveat.
"""

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ridgeline.base.errors import ConfigError
from ridgeline.base.units import GIB, MIB
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.memory import needed_cache_bytes
from ridgeline.planner.ask import KV_BYTES, Ask
from ridgeline.planner.plan import growth_bytes, timed
from ridgeline.planner.setup import Setup, Workshop

Row = Mapping[str, str]
_WEIGHTS = {"bf16": "bf16", "fp8": "fp8", "int8": "int8", "int4-g32": "int4", "mxfp4": None, "q8": "int8"}
_UNSTATED_DEVICE = "h100"  # for sizes, which are the same on every device
_DRAWN, _LEAST, _MEAN = "0.8-1.0 of nominal", 0.8, 0.9  # lengths that a client draws below the nominal ones
_RESERVED = 0.95  # of a device's memory, in the sizes that serving engines state


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One row, in its metric's unit; of a throughput all three are seconds per output token of the
    deployment. floor: None for a size. estimate: None where the row leaves the workload open. note: the row's
    caveat."""

    id: str
    what: str
    unit: str
    measured: float
    floor: float | None
    estimate: float | None
    note: str

    @property
    def error(self) -> float | None:
        """Estimate over measurement, less one."""
        return None if self.estimate is None else self.estimate / self.measured - 1

    @property
    def holds(self) -> bool:
        """False where a floor is above its measurement."""
        return self.floor is None or self.floor <= self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All rows of a file."""

    points: tuple[Judged, ...]

    def text(self) -> str:
        """A line a row, and the errors in sum."""
        lines = [f"{'id':4} {'what':64} {'measured':>10} {'floor':>10} {'estimate':>10} {'error':>7}"]
        for p in self.points:
            floor, estimate = (f"{'' if x is None else f'{x:.4g}':>10}" for x in (p.floor, p.estimate))
            error = "" if p.error is None else f"{p.error:+.0%}"
            mark = "" if p.holds else "  the floor is above the measurement"
            lines.append(f"{p.id:4} {p.what:64} {p.measured:10.4g} {floor} {estimate} {error:>7} "
                         f"{p.unit}{mark}")
        for name, chosen in (("times", [p for p in self.points if p.floor is not None]),
                             ("sizes", [p for p in self.points if p.floor is None])):
            errors = sorted(abs(p.error) for p in chosen if p.error is not None)
            if errors:
                lines.append(f"{name}: {len(errors)} estimates, error p50 {median(errors):.1%}, "
                             f"p90 {errors[int(0.9 * (len(errors) - 1))]:.1%}")
        floors = [p for p in self.points if p.floor is not None]
        held = sum(p.holds for p in floors)
        lines.append(f"floors: {held} of {len(floors)} are at or below the measurement")
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        return {"points": [{"id": p.id, "what": p.what, "unit": p.unit, "measured": p.measured,
                            "floor": p.floor, "estimate": p.estimate, "error": p.error, "note": p.note}
                           for p in self.points]}


def validate(path: str | Path, efficiency: Efficiency | None = None) -> Report:
    """Every row of a file of points. ConfigError names the row that cannot be read."""
    shop = Workshop(efficiency)
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Report(points=tuple(_judged(row, shop) for row in rows))


def _judged(row: Row, shop: Workshop) -> Judged:
    try:
        metric = row["metric"]
        judge = _METRICS[metric]
        return judge(row, shop)
    except KeyError as error:
        raise ConfigError(f"row {row.get('id', '?')} of the points: {error} is not there or not known; "
                          f"metrics are {', '.join(_METRICS)}") from None
    except ValueError as error:
        raise ConfigError(f"row {row.get('id', '?')}: {error}") from None


def _point(row: Row, measured: float, unit: str, floor: float | None, estimate: float | None) -> Judged:
    layout = "" if row["gpu"] == "unstated" else f" on {row['num_gpus']} {row['gpu']}"
    what = f"{row['model']} {row['weights_dtype']}{layout}, {row['load'] or row['engine']}: {row['metric']}"
    return Judged(id=row["id"], what=what[:64], unit=unit, measured=measured, floor=floor, estimate=estimate,
                  note=row["caveat"])


def _lengths(row: Row, share: float) -> tuple[int, int] | None:
    """(prompt, output) tokens; None where the row states none."""
    if not (row["isl"].isdecimal() and row["osl"].isdecimal()):
        return None
    part = share if _DRAWN in row["caveat"] else 1.0
    return round(int(row["isl"]) * part), round(int(row["osl"]) * part)


def _setup(row: Row, shop: Workshop, lengths: tuple[int, int] | None) -> Setup:
    """Unknown lengths are the shortest."""
    degrees = {name.lower(): int(n) for name, n in re.findall(r"(TP|DP|EP)(\d+)", row["parallelism"])}
    if "ep" in degrees:
        degrees.pop("dp", None)  # attention is data parallel over the devices that share the experts
    prompt, output = lengths or (1, 1)
    own = row["weights_dtype"] == "bf16" and row["kv_dtype"] == "auto"
    wide = own or row["kv_dtype"] in ("bf16", "f16")
    ask = Ask(model=row["model"], gpu=_UNSTATED_DEVICE if row["gpu"] == "unstated" else row["gpu"],
              kv="bf16" if wide else "fp8",
              prompt=prompt, output=output, weights=_WEIGHTS[row["weights_dtype"]], tp=degrees.get("tp", 1),
              ep=degrees.get("ep"), dp=degrees.get("dp"))
    return shop.setup(ask)


def _users(row: Row) -> int | None:
    found = re.fullmatch(r"(?:concurrency|batch) (\d+)", row["load"])
    return int(found.group(1)) if found else None


def _both(row: Row, shop: Workshop) -> tuple[Setup, Setup | None]:
    """The setups of the floor and of the estimate."""
    least, mean = _lengths(row, _LEAST), _lengths(row, _MEAN)
    return _setup(row, shop, least), None if mean is None else _setup(row, shop, mean)


def _token(row: Row, shop: Workshop) -> Judged:
    """Time per output token: a step of as many rows as there are users, prompts between in the estimate."""
    least, mean = _both(row, shop)
    users = _users(row)
    measured = float(row["value"]) / 1e3 if row["unit"] == "ms" else 1 / float(row["value"])
    rows = least.rows(users or 1)
    speed = timed(mean, rows).estimate if mean and users else None
    return _point(row, measured, "s", timed(least, rows).floor.tpot_s,
                  None if speed is None else speed.mixed_s if (users or 1) > 1 else speed.tpot_s)


def _whole(row: Row, shop: Workshop) -> Judged:
    """A batch from its prompts to its last token."""
    setup, mean = _both(row, shop)
    assert mean is not None
    rows = _users(row) or 1
    steps, output = timed(setup, rows), setup.ask.output - 1
    floor_s, estimate_s = steps.floor, steps.estimate
    return _point(row, float(row["value"]) / 1e3, "s", floor_s.prefill_s + output * floor_s.tpot_s,
                  rows * estimate_s.prefill_s + output * estimate_s.tpot_s)


def _throughput(row: Row, shop: Workshop) -> Judged:
    """Seconds a token of the deployment at the batch that its memory holds on average: halfway through
    outputs."""
    least, mean = _both(row, shop)
    per = int(row["num_gpus"]) if row["unit"].endswith("/gpu") else 1

    def each(setup: Setup, reading: str) -> float:
        rows = max(setup.max_rows() * setup.length // (setup.ask.prompt + setup.ask.output // 2 or 1), 1)
        speed = timed(setup, rows)
        return float(getattr(speed, reading).mixed_s) / (rows * setup.lanes)

    return _point(row, 1 / (float(row["value"]) * per), "s/token", each(least, "floor"),
                  None if mean is None else each(mean, "estimate"))


def _size(row: Row, shop: Workshop) -> Judged:
    """Memory, in the row's unit. A pool of keys and values that the caveat states is taken as given. What an
    engine takes outside its framework's allocator is not told apart from its workspace: no estimate."""
    setup = _setup(row, shop, None)
    room, value, unit = setup.rooms[0], float(row["value"]), row["unit"]
    pool = re.search(r"([\d.]+) GiB pool", row["caveat"])
    usable = (setup.device.usable_bytes or room.capacity) * _RESERVED
    free = usable - room.weights - room.step_bytes - room.workspace
    found = {"weights": room.weights, "activation_peak": room.step_bytes + room.workspace,
             "kv_pool": free,
             "kv_tokens": (float(pool.group(1)) * GIB if pool else free) / growth_bytes(setup)}
    if row["metric"] == "kv_cache":
        found["kv_cache"] = needed_cache_bytes(setup.spec, int(row["isl"]), KV_BYTES[setup.ask.kv])
    scale = {"GiB": GIB, "MiB": MIB, "tokens": 1}[unit]
    size = found.get(row["metric"])
    return _point(row, value, unit, None, None if size is None else size / scale)


_METRICS: Mapping[str, Callable[[Row, Workshop], Judged]] = {
    "tpot": _token, "tpot_mean": _token, "decode_throughput": _token, "e2e_latency_mean": _whole,
    "output_throughput": _throughput, "output_throughput_per_gpu": _throughput,
    **dict.fromkeys(("weights", "activation_peak", "non_torch", "kv_pool", "kv_tokens", "kv_cache"), _size)}
