"""What a lab is: controls in; numbers, curves and notes out. Pages and JSON show a Result as it is and
compute nothing themselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ridgeline.base.errors import ConfigError

Value = float | int | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One input. kind: "number" (low, high and step in `unit`; log: its slider is logarithmic; whole where
    its default is an int), "choice" (one of `choices`) or "toggle". default: what a page starts with. help:
    a sentence for those who hover."""

    key: str
    label: str
    kind: str
    default: Value
    unit: str = ""
    low: float | None = None
    high: float | None = None
    step: float | None = None
    log: bool = False
    choices: tuple[str, ...] = ()
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One output. value in `unit` (bytes, s, FLOP, tok/s, "" for a ratio or a count, "share" for a part of a
    whole, which people read as a percentage). formula: with symbols;
    inputs: the same with this state's numbers. reading: "nominal", "exact" or "" where both are one."""

    key: str
    label: str
    value: Value
    unit: str = ""
    formula: str = ""
    inputs: str = ""
    reading: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve: x and y of equal length. kind: "line", "step", "bar", "points" or "band" (y to upper)."""

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    kind: str = "line"
    upper: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line across a chart at x or at y, with its name."""

    label: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over one pair of axes; units stand in the axes' labels. stacked: bars stand on one another."""

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    stacked: bool = False
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of parts, for memory: parts are (label, value in `unit`). total: the capacity they share; parts
    beyond it do not fit."""

    key: str
    title: str
    total: float
    parts: tuple[tuple[str, float], ...]
    unit: str = "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a state of the controls gives. notes: what to watch for, one sentence each. num_steps: positions
    of the page's stepper, whose place is the control "step" (0: none)."""

    numbers: tuple[Number, ...]
    charts: tuple[Chart, ...] = ()
    bars: tuple[Bar, ...] = ()
    notes: tuple[str, ...] = ()
    num_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """One page. lead: what it shows, in a sentence or two. compute: a value for each control -> Result."""

    key: str
    title: str
    lead: str
    controls: tuple[Control, ...]
    compute: Callable[[Mapping[str, Value]], Result]

    def state(self, given: Mapping[str, object]) -> dict[str, Value]:
        """Every control's value: as given (text or typed), else its default. ConfigError names the control
        that is unknown, out of range or of the wrong kind, and what it takes."""
        known = {control.key: control for control in self.controls}
        for key in given:
            if key not in known:
                raise ConfigError(f"{self.key} has no control {key!r}: it has {', '.join(known)}")
        return {key: _read(control, given[key]) if key in given else control.default
                for key, control in known.items()}


def _read(control: Control, given: object) -> Value:
    if control.kind == "toggle":
        words = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
        if str(given).lower() not in words:
            raise ConfigError(f"{control.key} is {given!r}: it takes true or false")
        return words[str(given).lower()]
    if control.kind == "choice":
        if str(given) not in control.choices:
            raise ConfigError(f"{control.key} is {given!r}: it takes one of {', '.join(control.choices)}")
        return str(given)
    low = float("-inf") if control.low is None else control.low
    high = float("inf") if control.high is None else control.high
    try:
        value = float(str(given))
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise ConfigError(f"{control.key} is {given!r}: it takes a number from {low:g} to {high:g}")
    if not isinstance(control.default, int):
        return value
    if value != int(value):
        raise ConfigError(f"{control.key} is {given!r}: it takes a whole number")
    return int(value)
