"""Labs, controls and results as plain data for JSON and for the templates."""

from collections.abc import Mapping
from typing import Any

from ridgeline.planner.lab import Bar, Control, Lab, Number, Result, Value
from ridgeline.web.people import figures, texts

_STOPS_PER_OCTAVE = 8


def control_data(control: Control, value: Value) -> dict[str, Any]:
    """A control and what it stands at. stops: the places of a logarithmic slider, which moves by index."""
    return {
        "key": control.key, "label": control.label, "kind": control.kind, "unit": control.unit,
        "default": _short(control.default), "value": _short(value), "low": control.low, "high": control.high,
        "step": control.step, "choices": list(control.choices), "help": control.help,
        "stops": _stops(control) if control.log else [],
    }  # fmt: skip


def _short(value: Value) -> Value:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def lab_data(lab: Lab, state: Mapping[str, Value]) -> dict[str, Any]:
    """A lab with its controls at `state`."""
    controls = [control_data(control, state[control.key]) for control in lab.controls]
    return {"key": lab.key, "title": lab.title, "lead": lab.lead, "controls": controls}


def result_data(lab: Lab, state: Mapping[str, Value], result: Result) -> dict[str, Any]:
    """A result: `values` holds every number by its key in its unit, `numbers` adds label, text and formula.

    A key with two readings has the first under `values` and each under `readings`.
    """
    values: dict[str, Value] = {}
    readings: dict[str, dict[str, Value]] = {}
    for number in result.numbers:
        values.setdefault(number.key, number.value)
        if number.reading:
            readings.setdefault(number.reading, {})[number.key] = number.value
    return {
        "lab": lab.key, "state": dict(state), "values": values, "readings": readings,
        "numbers": [_number(number) for number in result.numbers],
        "bars": [_bar(bar) for bar in result.bars],
        "charts": result.charts, "notes": result.notes, "num_steps": result.num_steps,
    }  # fmt: skip


def _number(number: Number) -> dict[str, Any]:
    text, also = texts(number.value, number.unit)
    return {
        "key": number.key, "label": number.label, "value": number.value, "unit": number.unit, "text": text,
        "also": also, "formula": number.formula, "inputs": number.inputs, "reading": number.reading,
    }  # fmt: skip


def _bar(bar: Bar) -> dict[str, Any]:
    """share: of the whole width, which is the capacity or, when the parts need more, their sum."""
    used = sum(value for _, value in bar.parts)
    width = max(bar.total, used) or 1.0

    def part(label: str, value: float) -> dict[str, Any]:
        text, also = texts(value, bar.unit)
        return {"label": label, "value": value, "text": text, "also": also, "share": value / width}

    rest = bar.total - used
    return {
        "key": bar.key, "title": bar.title, "unit": bar.unit, "parts": [part(*p) for p in bar.parts],
        "total": part("capacity", bar.total), "used": part("used", used),
        "rest": part("free" if rest >= 0 else "does not fit", abs(rest)), "fits": rest >= 0,
        "percent": f"{figures(100 * used / bar.total)}%" if bar.total else "",
    }  # fmt: skip


def _stops(control: Control) -> list[float]:
    """Whole octaves and eighths of them from low to high, rounded to the control's step."""
    low, high = float(control.low or 1), float(control.high or 1)
    found = {low, high, float(control.default)}
    place, power = low, 0
    while place < high:
        found.add(round(place / control.step) * control.step if control.step else float(f"{place:.3g}"))
        power += 1
        place = low * 2 ** (power / _STOPS_PER_OCTAVE)
    return sorted(stop for stop in found if low <= stop <= high)
