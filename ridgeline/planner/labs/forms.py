"""Short forms for what a lab puts on its page: numbers, curves, charts, and how their texts write quantities.
Knows no model and no device."""

from collections.abc import Callable, Mapping, Sequence

from ridgeline.planner.lab import Chart, Mark, Number, Series, Value


def number(key: str, label: str, value: Value, unit: str = "", formula: str = "", inputs: str = "",
           reading: str = "") -> Number:
    return Number(key=key, label=label, value=value, unit=unit, formula=formula, inputs=inputs,
                  reading=reading)


def both(key: str, label: str, values: tuple[Value, Value], unit: str, formulas: tuple[str, str], inputs: str,
         differs: str) -> tuple[Number, Number]:
    """A number in both readings, (nominal, exact). differs: what is other in the exact one."""
    return (number(key, label, values[0], unit, formulas[0], inputs, "nominal"),
            number(key, f"{label}, {differs}", values[1], unit, formulas[1], "", "exact"))


def curve(name: str, xs: Sequence[float], y: Callable[[float], float], kind: str = "line") -> Series:
    return Series(name=name, x=tuple(xs), y=tuple(y(x) for x in xs), kind=kind)


def bars(xs: Sequence[float | str], heights: Mapping[str, Sequence[float]]) -> tuple[Series, ...]:
    """A series of bars for each name, as many as it has heights."""
    return tuple(Series(name=name, x=tuple(xs[:len(ys)]), y=tuple(ys), kind="bar")
                 for name, ys in heights.items())


def chart(key: str, title: str, x_label: str, y_label: str, *series: Series, log: str = "",
          at_x: Mapping[str, float] | None = None, at_y: Mapping[str, float] | None = None,
          stacked: bool = False) -> Chart:
    """log: the logarithmic axes, "x", "y" or "xy". at_x, at_y: marks by label; 0 is left out."""
    marks = (*(Mark(label=label, x=x) for label, x in (at_x or {}).items() if x),
             *(Mark(label=label, y=y) for label, y in (at_y or {}).items() if y))
    return Chart(key=key, title=title, x_label=x_label, y_label=y_label, series=series, stacked=stacked,
                 log_x="x" in log, log_y="y" in log, marks=marks)


def spread(low: float, high: float, num: int = 33) -> tuple[float, ...]:
    """num numbers at equal ratios, ends included."""
    return tuple(low * (high / low) ** (i / (num - 1)) for i in range(num))


def gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.4g} GB"


def count(num: int, name: str) -> str:
    """"1 draft", "4 drafts"."""
    return f"{num} {name}{'' if num == 1 else 's'}"
