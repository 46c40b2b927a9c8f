"""`ridgeline simulate --example NAME`: the two loads of `sim.examples`, told as tables or as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ridgeline.schedule.targets import Targets
from ridgeline.sim.examples import (
    Conclusion,
    Run,
    eight_requests,
    reversed_conclusions,
)
from ridgeline.sim.node import Machine, Serving
from ridgeline.sim.outcome import Outcome
from ridgeline.sim.report import outcomes_text, table
from ridgeline.workload.offered import Workload

Told = tuple[Callable[[], str], Mapping[str, Any]]  # as text, and as JSON


def tell_eight(machine: Machine, policies: Sequence[str], targets: Targets, run: Run) -> Told:
    """The eight requests under each of the policies."""
    outcomes = [run(machine, Serving(policy=policy, targets=targets), eight_requests(policy))
                for policy in policies]
    values = {"machine": machine.name, "workload": eight_requests("").about,
              "policies": {one.policy: one.as_json() for one in outcomes}}

    def text() -> str:
        rows = [("policy", "slots used", "longest gap", "typical gap", "last answer after"),
                *map(_eight_row, outcomes)]
        return "\n".join([f"{machine.name}; {eight_requests('').about}", table(rows), "",
                          outcomes_text(outcomes)])

    return text, values


def _eight_row(one: Outcome) -> tuple[str, ...]:
    gaps = one.latencies["itl"]
    return (one.policy, f"{one.slot_utilisation:.1%}", f"{gaps['max'] * 1e3:.0f} ms",
            f"{gaps['p50'] * 1e3:.1f} ms", f"{one.duration_s:.2f} s")


def tell_uniform(machine: Machine, real: Workload, run: Run) -> Told:
    """The conclusions that real lengths turn around."""
    found = reversed_conclusions(machine, real, run)
    values = {"machine": machine.name, "workload": real.about, "conclusions": [asdict(one) for one in found]}

    def text() -> str:
        rows = [("uniform load says", "measure", "uniform", "real"), *map(_conclusion_row, found)]
        return (f"{machine.name}; {len(real.requests)} requests, {machine.capacity.num_rows} at a time: "
                f"{real.about}, and as many of their mean lengths\n{table(rows)}")

    return text, values


def _conclusion_row(one: Conclusion) -> tuple[str, ...]:
    if one.measure.startswith("share"):
        return one.claim, one.measure, f"{one.uniform:.1%}", f"{one.real:.1%}"
    return one.claim, one.measure, f"{one.uniform:.2f} x", f"{one.real:.2f} x"
