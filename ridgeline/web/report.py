"""A simulation's study as one HTML file that works offline: it carries its data, its scripts and the plot
library. Charts are the labs' own (static/charts.js); only the timeline of slots is drawn by report.js."""

import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ridgeline.base.stats import tpot_s, ttft_s
from ridgeline.planner.lab import Chart, Mark, Series
from ridgeline.schedule.targets import Targets
from ridgeline.sim.fragments import SHARE, MemoryUse
from ridgeline.sim.outcome import Ended, Outcome
from ridgeline.sim.study import Change, Loads, Run, Study
from ridgeline.web.app import plot_library

_HERE = Path(__file__).parent
_POINTS = 200  # of a distribution's curve and, about, of an occupancy's
_SLOTS, _SEGMENTS = 32, 6000  # most that a timeline shows


def write_report(study: Study, path: Path) -> None:
    """Writes the file."""
    path.write_text(report_html(study), encoding="utf-8")


def report_html(study: Study) -> str:
    """The page."""
    pages = Environment(loader=FileSystemLoader(_HERE / "pages"), autoescape=True, undefined=StrictUndefined,
                        trim_blocks=True, lstrip_blocks=True)
    static = {path.name: path.read_text(encoding="utf-8") for path in (_HERE / "static").iterdir()}
    data = msgspec.json.encode({
        "timelines": [_timeline(run) for run in study.examples or study.runs], "charts": _charts(study)})
    return pages.get_template("report.html").render(
        study=study, version=version("ridgeline"), rows=[_row(run) for run in study.runs],
        changes=[_change(study.base.outcome, one) for one in study.changes] if study.base else [],
        css=static["labs.css"] + static["report.css"], theme=static["theme.js"],
        script=_module(static["make.js"], static["charts.js"], static["report.js"]),
        plotly=plot_library().read_text(encoding="utf-8"),
        data=data.decode().replace("<", "\\u003c"))


def _module(*sources: str) -> str:
    """Modules that import one another as one: without their imports and exports."""
    text = "\n".join(sources)
    return re.sub(r"^export ", "", re.sub(r"^import .*?;$", "", text, flags=re.M), flags=re.M)


# ---- tables


def _row(run: Run) -> list[str]:
    """The summary of a run, in the order of the page's headings."""
    one = run.outcome
    return [run.name, _figure(one.goodput, "/s"), f"{one.attainment:.1%}",
            _figure(one.goodput_per_device, "/s"), _figure(one.good_per_usd, ""),
            _figure(one.output_tok_s, ""), f"{one.slot_utilisation:.1%}",
            *(_time(one.latencies[name].get(point)) for name in ("ttft", "tpot") for point in ("p50", "p99")),
            _time(one.latencies["itl"].get("p99")), f"{one.kv_occupancy['mean']:.1%}", str(one.preemptions),
            str(one.wasted_tokens)]


def _change(base: Outcome, change: Change) -> dict[str, Any]:
    now = change.outcome
    moved = now.goodput / base.goodput - 1 if base.goodput else 0.0
    return {"knob": change.knob, "before": change.before, "after": change.after,
            "moved": f"{moved:+.1%}" if moved < 10 else f"{moved + 1:.0f} times",
            "better": moved > 0.005, "worse": moved < -0.005, "width": min(abs(moved), 1.0) * 100,
            "goodput": _figure(now.goodput, "/s"), "per_device": _figure(now.goodput_per_device, "/s"),
            "per_usd": _figure(now.good_per_usd, ""), "attainment": f"{now.attainment:.1%}",
            "ttft": _time(now.latencies["ttft"].get("p99")), "tpot": _time(now.latencies["tpot"].get("p99"))}


def _figure(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.3g}{unit}" if abs(value) < 1000 else f"{value:,.0f}{unit}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


# ---- pictures


def _timeline(run: Run) -> dict[str, Any]:
    """Slots of all engines of a run, one under the other, as far as they can be told apart."""
    lanes: list[dict[str, Any]] = []
    left = _SEGMENTS
    for engine in run.engines:
        slots = sorted({one.slot for one in engine.segments})[:_SLOTS]
        shown = [one for one in engine.segments if one.slot in slots][:left]
        left -= len(shown)
        lanes += [{"name": f"{engine.name} {slot + 1}".strip(), "segments": [
            (one.kind, one.begin_s, one.end_s, one.request + 1) for one in shown if one.slot == slot]}
            for slot in slots]
    of = run.outcome
    return {"name": run.name, "lanes": lanes,
            "end_s": max((one.record.finished_s for one in run.ended), default=0.0),
            "said": f"{_time(of.duration_s)} until all are done, slots {of.slot_utilisation:.0%} used, "
                    f"longest wait between tokens {_time(_longest_gap(run.ended))}"}


def _longest_gap(ended: Sequence[Ended]) -> float:
    return max((float(np.diff(one.times_s).max()) for one in ended if len(one.times_s) > 1), default=0.0)


def _charts(study: Study) -> list[Chart]:
    return [*_load_charts(study.loads), *_distributions(study.runs, study.targets), *_occupancy(study.runs),
            *_memory(study.memory)]


def _load_charts(loads: Sequence[Loads]) -> list[Chart]:
    """Throughput against goodput, by rate and by one another."""
    if not loads:
        return []

    def served(one: Outcome) -> float:
        return one.num_finished / one.duration_s if one.duration_s else 0.0

    by_rate = [series for load in loads for series in (
        Series(name=f"{load.name}: served", x=tuple(load.rates), y=tuple(map(served, load.outcomes))),
        Series(name=f"{load.name}: in time", x=tuple(load.rates), y=tuple(o.goodput for o in load.outcomes)))]
    token = [Series(name=load.name, x=tuple(o.output_tok_s for o in load.outcomes),
                    y=tuple(o.goodput for o in load.outcomes)) for load in loads]
    return [_chart("loads", "Throughput and goodput by the offered rate", "offered, requests/s",
                   "requests/s", by_rate),
            _chart("against", "Goodput against throughput", "throughput, tok/s", "in time, requests/s",
                   token)]


def _distributions(runs: Sequence[Run], targets: Targets) -> list[Chart]:
    """How many requests had to wait how long, for each latency."""
    kinds = (("ttft", "Time to first token", targets.ttft_s), ("tpot", "Time per token", targets.tpot_s),
             ("itl", "Time between tokens", None), ("e2e", "Time until the end", None))
    return [_chart(f"cdf-{key}", f"{title}: share that waits no longer", "s", "share",
                   [_curve(run.name, _seconds(run.ended, key)) for run in runs], log_x=True,
                   marks=() if target is None else (Mark(label="target", x=target),))
            for key, title, target in kinds]


def _seconds(ended: Sequence[Ended], key: str) -> list[float]:
    complete = [one for one in ended if one.complete]
    if key == "itl":
        gaps = [np.diff(one.times_s) for one in complete]
        return np.concatenate(gaps).tolist() if gaps else []
    of = {"ttft": ttft_s, "tpot": tpot_s, "e2e": lambda record: record.finished_s - record.arrived_s}[key]
    return [value for one in complete if (value := of(one.record)) is not None]


def _curve(name: str, seconds: Sequence[float]) -> Series:
    shares = np.linspace(0, 1, _POINTS)
    found = np.quantile(seconds, shares) if seconds else np.zeros(0)
    return Series(name=name, x=tuple(found.tolist()), y=tuple(shares[:len(found)].tolist()))


def _occupancy(runs: Sequence[Run]) -> list[Chart]:
    """Each engine's cache over time, its most in each stretch."""
    series = []
    for run in runs:
        for engine in run.engines:
            every = max(len(engine.times_s) // _POINTS, 1)
            held = [max(engine.occupancy[i:i + every]) for i in range(0, len(engine.times_s), every)]
            series.append(Series(name=f"{run.name} {engine.name}".strip(), kind="step", y=tuple(held),
                                 x=tuple(engine.times_s[::every])))
    return [_chart("occupancy", "KV cache held by requests, over time", "s", "share of its pages", series)]


def _memory(memory: Sequence[MemoryUse]) -> list[Chart]:
    """Contiguous memory against pages."""
    if not memory:
        return []
    names = tuple(one.name for one in memory)
    parts = {"computed tokens": [one.used for one in memory],
             "handed out, empty": [one.internal for one in memory],
             "free, in pieces too small": [one.external for one in memory],
             "free": [one.free for one in memory]}
    residents = {"mean": [one.mean_residents for one in memory],
                 "most": [one.most_residents for one in memory]}

    def bars(of: dict[str, Any]) -> list[Series]:
        return [Series(name=name, x=names, y=tuple(map(float, ys)), kind="bar") for name, ys in of.items()]

    said = f"with a cache for {SHARE:.0%} of what all need"
    return [_chart("fragments", f"What the bytes are, {said}", "", "share of the cache", bars(parts),
                   stacked=True),
            _chart("residents", f"Requests in memory, {said}", "", "requests", bars(residents))]


def _chart(key: str, title: str, x_label: str, y_label: str, series: Sequence[Series], *, log_x: bool = False,
           stacked: bool = False, marks: tuple[Mark, ...] = ()) -> Chart:
    return Chart(key=key, title=title, x_label=x_label, y_label=y_label, series=tuple(series), log_x=log_x,
                 stacked=stacked, marks=marks)
