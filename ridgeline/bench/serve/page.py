"""A load test as one HTML page that needs no network: figures drawn as SVG, numbers as in the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, pairwise
from math import log10
from typing import Any

from ridgeline.bench.serve.text import report

_WIDTH, _HEIGHT, _LEFT, _ROOM = 560, 240, 60, 40  # of a plot, and around it
_MOST_POINTS = 1500
_COLOURS = ("#2563eb", "#d97706")
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1400px;margin:2em auto;padding:0 1em}
pre{background:#f3f4f6;padding:1em;overflow:auto}figure{display:inline-block;margin:0 1em 1em 0}
text{font:12px system-ui,sans-serif;fill:#374151}figcaption{font-weight:600}"""
Points = Sequence[tuple[float, float]]


def page(found: Mapping[str, Any]) -> str:
    """The page of a result with its lists of requests."""
    rows = list(zip(found["start_times"], found["ttfts"], found["itls"], found["errors"], strict=True))
    answered = [(start, ttft, sum(gaps)) for start, ttft, gaps, error in rows if not error]
    gaps = [gap for _, _, gaps, error in rows for gap in gaps if not error]
    changes = sorted([(start, 1) for start, _, _ in answered]
                     + [(start + ttft + rest, -1) for start, ttft, rest in answered])
    counts = [0, *accumulate(step for _, step in changes)]
    under_way = [(time_s, float(count)) for (time_s, _), beside in zip(changes, pairwise(counts), strict=True)
                 for count in beside]
    title = f"Load test of {escape(str(found['model_id']))}"
    figures = (
        _figure("TTFT by the time a request was to be sent (failed ones at 0)", "s", "s",
                {"answered": [(start, ttft) for start, ttft, _ in answered],
                 "failed": [(start, 0.0) for start, _, _, error in rows if error]}, dots=True),
        _figure("Answered requests in the system", "s", "", {"": under_way}),
        _figure("Share of requests within a latency", "s", "%", {
            "TTFT": _shares([ttft for _, ttft, _ in answered]),
            "E2E": _shares([ttft + rest for _, ttft, rest in answered])}, log=True),
        _figure("Share of gaps between chunks within a time (ITL)", "s", "%", {"": _shares(gaps)},
                log=True))
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
            f"<h1>{title}</h1><pre>{escape(report(found))}</pre>{''.join(figures)}</html>\n")


def _shares(values: Sequence[float]) -> Points:
    """The distribution function of what is above 0, in percent."""
    ordered = sorted(value for value in values if value > 0)
    return [(value, 100 * (i + 1) / len(ordered)) for i, value in enumerate(ordered)]


def _figure(title: str, x_unit: str, y_unit: str, series: Mapping[str, Points], *, dots: bool = False,
            log: bool = False) -> str:
    """Lines or dots of each series; log: the horizontal axis."""
    series = {name: one for name, one in series.items() if one}
    points = [point for one in series.values() for point in one]
    if not points:
        return ""
    scale: Callable[[float], float] = log10 if log else float
    low, high = (scale(pick(x for x, _ in points)) for pick in (min, max))
    top = max(max(y for _, y in points), 1e-9)

    def place(x: float, y: float) -> str:
        across = (scale(x) - low) / (high - low or 1.0)
        return f"{_LEFT + across * _WIDTH:.1f},{10 + (1 - y / top) * _HEIGHT:.1f}"

    drawn = "".join(_drawn([place(x, y) for x, y in _thinned(one)], colour, dots)
                    for one, colour in zip(series.values(), _COLOURS, strict=False))
    names = "".join(f'<text x="{_LEFT + 12 + 90 * i}" y="24" style="fill:{colour}">{escape(name)}</text>'
                    for i, (name, colour) in enumerate(zip(series, _COLOURS, strict=False)))
    return (f'<figure><figcaption>{escape(title)}</figcaption><svg width="{_LEFT + _WIDTH + 40}" '
            f'height="{_HEIGHT + _ROOM}">{"".join(_axes(low, high, top, log, x_unit, y_unit))}{drawn}{names}'
            "</svg></figure>")


def _drawn(places: Sequence[str], colour: str, dots: bool) -> str:
    if not dots:
        return f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    pairs = (place.split(",") for place in places)
    return "".join(f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>' for x, y in pairs)


def _axes(low: float, high: float, top: float, log: bool, x_unit: str, y_unit: str) -> Iterator[str]:
    for i in range(5):
        value, across = low + (high - low) * i / 4, _LEFT + _WIDTH * i / 4
        text = f"{10**value if log else value:.3g} {x_unit}"
        yield f'<text x="{across:.0f}" y="{_HEIGHT + 28}" text-anchor="middle">{text}</text>'
        down = 10 + _HEIGHT * (1 - i / 4)
        yield f'<text x="{_LEFT - 6}" y="{down + 4:.0f}" text-anchor="end">{top * i / 4:.3g} {y_unit}</text>'
        yield f'<path d="M{_LEFT} {down:.0f}h{_WIDTH}M{across:.0f} 10v{_HEIGHT}" stroke="#e5e7eb"/>'


def _thinned(points: Points) -> Points:
    """At most so many of them, the last among them."""
    step = -(-len(points) // _MOST_POINTS)
    return [*points[::step], *points[-1:]] if step else points
