"""A search as text, JSON, and its Pareto front as a picture: USD a token against a user's tokens a second."""

from dataclasses import asdict
from html import escape
from math import floor, log10
from typing import Any

from ridgeline.planner.search import Option, Search

_WIDTH, _HEIGHT, _LEFT, _BELOW, _TOP = 900, 520, 70, 60, 40
_INK, _FRONT, _CLOUD = "#222", "#b3261e", "#7a93ac"
_MOST_POINTS = 1500  # of the cloud, so that the file stays small


def search_json(found: Search, most: int = 20) -> dict[str, Any]:
    """The best options and the whole front; `num_feasible` of `num_tried`."""
    return {"best": [asdict(x) for x in found.feasible[:most]], "front": [asdict(x) for x in found.front],
            "num_tried": found.num_tried, "num_feasible": len(found.feasible), "seconds": found.seconds,
            "why": found.why, "nearest": asdict(found.nearest) if found.nearest else None,
            "unpriced": list(found.unpriced)}


def _row(x: Option) -> str:
    return (f"{f'{x.num_devices} x {x.gpu}':<20}{x.layout.text():<30}{x.weights:<12}{x.kv:<6}{x.batch:>6}"
            f"{x.ttft_s * 1e3:>9.1f}{x.tpot_s * 1e3:>8.2f}{x.output_tok_s:>9.0f}{x.usd_per_hour:>8.2f}"
            f"{x.usd_per_million:>8.3f}")


def search_text(found: Search, most: int = 10) -> str:
    """The cheapest and the front, a row an option."""
    head = (f"{'devices':<20}{'layout':<30}{'weights':<12}{'cache':<6}{'batch':>6}{'TTFT ms':>9}{'TPOT':>8}"
            f"{'tok/s':>9}{'USD/h':>8}{'USD/1e6':>8}")
    lines = [f"{found.num_tried} deployments priced in {found.seconds:.2f} s, {len(found.feasible)} of them "
             "meet what is asked; by estimates, TPOT with prompts in between",
             "quality is not priced: measure it where weights or cache are narrower than the model's own"]
    if found.why:
        lines.append(f"infeasible: {found.why}" + ("; the nearest:" if found.nearest else ""))
    # of each deployment, its best batch
    best = {(x.gpu, x.layout, x.weights, x.kv): x for x in reversed(found.feasible)}
    shown = sorted(best.values(), key=found.feasible.index)[:most]
    lines += [head, *map(_row, shown or ([found.nearest] if found.nearest else []))]
    if found.front:
        lines += ["", "nothing is both cheaper and faster for a user than these:", head,
                  *map(_row, found.front)]
    if found.unpriced:
        lines += ["", f"left out, no price known (give --price with --gpu): {', '.join(found.unpriced)}"]
    return "\n".join(lines)


class _Axis:
    """A logarithmic axis from the least to the most of some values, over pixels `start` to `end`."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        low, high = log10(min(values)), log10(max(values))
        pad = 0.05 * (high - low) + 0.02
        self._low, self._span, self._start, self._end = low - pad, high - low + 2 * pad, start, end

    def at(self, value: float) -> float:
        return self._start + (log10(value) - self._low) / self._span * (self._end - self._start)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of each power of ten that the axis reaches."""
        powers = range(floor(self._low), floor(self._low + self._span) + 1)
        every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [value for value in every if 0 <= log10(value) - self._low <= self._span]


def pareto_svg(found: Search, title: str) -> str:
    """All feasible options as a cloud, the front as a line with its devices. "" without an option."""
    if not found.feasible:
        return ""
    every = found.feasible
    x = _Axis([o.user_tok_s for o in every], _LEFT, _WIDTH - 30)
    y = _Axis([o.usd_per_million for o in every], _HEIGHT - _BELOW, _TOP)
    bottom, right, middle = _HEIGHT - _BELOW, _WIDTH - 30, 'text-anchor="middle"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
             f'font-family="sans-serif" font-size="12" fill="{_INK}"><title>{escape(title)}</title>',
             '<rect width="100%" height="100%" fill="#fff"/>',
             f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>']
    for value in x.ticks():
        parts.append(f'<path d="M{x.at(value):.1f} {_TOP}V{bottom}" stroke="#e3e3e3"/>'
                     f'<text x="{x.at(value):.1f}" y="{bottom + 18}" {middle}>{value:g}</text>')
    for value in y.ticks():
        parts.append(f'<path d="M{_LEFT} {y.at(value):.1f}H{right}" stroke="#e3e3e3"/>'
                     f'<text x="{_LEFT - 8}" y="{y.at(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts += [f'<circle cx="{x.at(o.user_tok_s):.1f}" cy="{y.at(o.usd_per_million):.1f}" r="1.6" '
              f'fill="{_CLOUD}" fill-opacity=".45"/>' for o in every[::-(-len(every) // _MOST_POINTS)]]
    parts += _front(found.front, x, y)
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 14}" {middle}>tokens a second of one user (estimate, '
                 'prompts in between)</text>'
                 f'<text transform="translate(18 {_HEIGHT / 2}) rotate(-90)" {middle}>'
                 'USD per 1e6 output tokens</text></svg>')
    return "\n".join(parts) + "\n"


def _front(options: tuple[Option, ...], x: _Axis, y: _Axis) -> list[str]:
    """The front's line, its points with their names on hover, and the devices where there is room."""
    places = [(x.at(o.user_tok_s), y.at(o.usd_per_million)) for o in options]
    line = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    parts, last = [f'<polyline points="{line}" fill="none" stroke="{_FRONT}" stroke-width="2"/>'], -1e9
    for o, (px, py) in zip(options, places, strict=True):
        name = escape(f"{o.num_devices} x {o.gpu}, {o.layout.text()}, {o.weights}, batch {o.batch}")
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{_FRONT}"><title>{name}</title>'
                     '</circle>')
        if px - last > 110:
            label = escape(f"{o.num_devices} x {o.gpu}")
            parts.append(f'<text x="{px + 4:.1f}" y="{py + 16:.1f}">{label}</text>')
            last = px
    return parts
