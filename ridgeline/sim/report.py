"""Outcomes as text: a table with a row a policy, and what a capacity search found."""

from collections.abc import Sequence

from ridgeline.schedule.targets import Targets
from ridgeline.sim.capacity import Capacity
from ridgeline.sim.outcome import Outcome

_LASTING = 3  # times a request's E2E, that a load lasts at the least
_COLUMNS = ("policy", "goodput/s", "a device", "good/$", "of offered", "out tok/s", "slots used", "KV used",
            "TTFT p50", "p99", "TPOT p50", "p99", "ITL p99", "E2E p50", "preempted", "wasted", "unwanted",
            "$/M tok")


def targets_text(targets: Targets) -> str:
    named = [f"{name} {value * 1e3:g} ms" for name, value in (("TTFT", targets.ttft_s),
                                                              ("TPOT", targets.tpot_s)) if value is not None]
    return "targets " + " and ".join(named) if named else "no targets: every complete request counts as good"


def outcomes_text(outcomes: Sequence[Outcome]) -> str:
    """A table; times in milliseconds but E2E in seconds. Below it, who got no answer."""
    missing = [f"{one.policy}: {one.num_refused} requests refused, longer than memory holds; {one.num_lost} "
               "lost, their clients went away" for one in outcomes if one.num_refused or one.num_lost]
    return "\n".join([table([_COLUMNS, *(_row(outcome) for outcome in outcomes)]), *missing])


def _row(one: Outcome) -> tuple[str, ...]:
    def ms(name: str, point: str) -> str:
        value = one.latencies[name].get(point)
        return "-" if value is None else f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.1f} ms"

    cost, e2e = one.cost["usd_per_million_output_tokens"], one.latencies["e2e"].get("p50")
    per_usd = one.good_per_usd
    return (one.policy, f"{one.goodput:.3g}", f"{one.goodput_per_device:.3g}",
            "-" if per_usd is None else f"{per_usd:.0f}", f"{one.attainment:.1%}", f"{one.output_tok_s:.0f}",
            f"{one.slot_utilisation:.1%}", f"{one.kv_occupancy['mean']:.1%}", ms("ttft", "p50"),
            ms("ttft", "p99"), ms("tpot", "p50"), ms("tpot", "p99"), ms("itl", "p99"),
            "-" if e2e is None else f"{e2e:.2f} s", str(one.preemptions), str(one.wasted_tokens),
            str(one.unwanted_tokens), "-" if cost is None else f"{cost:.3g}")


def capacity_text(found: Sequence[Capacity]) -> str:
    """A row a policy: its highest rate, and the latencies at it. Below, whose load was a burst."""
    rows: list[tuple[str, ...]] = [
        ("policy", "requests/s", "of offered", "TTFT p99", "TPOT p99", "ITL p99", "tries")]
    for one in found:
        at = one.outcome
        ttft, tpot, itl = (at.latencies[name].get("p99") for name in ("ttft", "tpot", "itl"))
        rows.append((at.policy, f"{one.rate:.3g}", f"{at.attainment:.1%}",
                     "-" if ttft is None else f"{ttft * 1e3:.0f} ms",
                     *("-" if one_s is None else f"{one_s * 1e3:.1f} ms" for one_s in (tpot, itl)),
                     str(len(one.tried))))
    return "\n".join([table(rows), *filter(None, map(_burst, found))])


def _burst(one: Capacity) -> str:
    """Said where a load ended before it could last: a queue had no time to grow."""
    num, e2e_s = one.outcome.num_offered, one.outcome.latencies["e2e"].get("p50", 0.0)
    if not one.rate or num / one.rate >= _LASTING * e2e_s:
        return ""
    return (f"{one.outcome.policy}: at {one.rate:.3g}/s its {num} requests come within {num / one.rate:.2g} "
            f"s, a burst beside their E2E of {e2e_s:.2g} s: a load that lasts needs more --num-requests")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width
                                                          in zip(row[1:], widths[1:], strict=True))])
                     for row in rows)
