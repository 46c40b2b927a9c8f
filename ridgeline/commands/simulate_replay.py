"""`ridgeline simulate [MODEL] --replay FILE`: a live engine's record through the simulator, as text or as
JSON."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ridgeline.ledger.steps import StepSeconds
from ridgeline.sim.replay import Priced, Replayed, read_origin, read_recorded, replay
from ridgeline.sim.report import table
from ridgeline.sim.retimed import Beside, retime


def tell_replay(path: Path, seconds: StepSeconds | None) -> tuple[Callable[[], str], Mapping[str, Any], bool]:
    """(as text, as JSON, whether all plans are the record's). seconds: of steps; None: plans alone."""
    recorded, origin = read_recorded(path), read_origin(path)
    found = replay(recorded, origin.capacity, lambda offers: origin.scheduler(offers, seconds),
                   max_in_flight=origin.max_in_flight, seconds=seconds)
    waits = {} if seconds is None else retime(recorded, origin, seconds)
    values = {"trace": str(path), "policy": origin.policy, "num_requests": len(recorded.requests),
              **asdict(found), "priced": {kind: {**asdict(one), "total": one.total}
                                          for kind, one in found.priced.items()},
              "latencies": {name: asdict(one) for name, one in waits.items()}}

    def text() -> str:
        lines = [f"{path.name}: {found.num_steps} steps of {len(recorded.requests)} requests, policy "
                 f"{origin.policy}, {origin.capacity.num_rows} rows", _plans(found)]
        if found.difference and origin.policy == "slo":
            lines.append("slo sizes steps by their prices: the record's were those of its machine's floors")
        if found.priced:
            lines += ["", table([("steps", "number", "measured", "priced", "in all", "error p50", "p90"),
                                 *map(_step_row, found.priced.items())])]
        if waits:
            lines += ["", table([("median of", "measured", "simulated", "error of each"),
                                 *map(_wait_row, waits.items())])]
        return "\n".join(lines)

    return text, values, not found.difference


def _plans(found: Replayed) -> str:
    if found.difference:
        return f"plans: the first {found.num_equal} are those of the record; {found.difference}"
    return f"plans: all {found.num_equal} are those of the record, step by step"


def _step_row(named: tuple[str, Priced]) -> tuple[str, ...]:
    kind, one = named
    return (kind, str(one.num_steps), f"{one.measured_s:.3f} s", f"{one.priced_s:.3f} s", f"{one.total:+.1%}",
            *(f"{one.error[point]:.1%}" if one.error else "-" for point in ("p50", "p90")))


def _wait_row(named: tuple[str, Beside]) -> tuple[str, ...]:
    name, one = named
    return (name.upper(), f"{one.measured_s * 1e3:.1f} ms", f"{one.simulated_s * 1e3:.1f} ms",
            f"{one.error:.1%}")
