"""Where the seconds of a start went: parts inside parts, each level summing to the one above, what nobody
timed under a name of its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some seconds, and what they went for; inside sums to them, or is empty."""

    name: str
    seconds: float
    inside: tuple["Part", ...] = ()

    def lines(self, depth: int = 0) -> Iterator[str]:
        """A line for each part, two characters further in at each level."""
        yield f"{'  ' * depth}  {round(self.seconds, 2) + 0.0:6.2f} s  {self.name}"  # no -0.00
        for part in self.inside:
            yield from part.lines(depth + 1)


def whole(name: str, seconds: float, parts: Sequence[Part], rest: str) -> Part:
    """A part with what is inside it, and what that leaves as `rest`."""
    left = Part(name=rest, seconds=seconds - sum(part.seconds for part in parts))
    return Part(name=name, seconds=seconds, inside=(*parts, left))


def start_ledger(
    seconds: Mapping[str, float], startup: Mapping[str, Any], *, asked_s: float, told_s: float,
    ttft_parts_s: Mapping[str, float],
) -> Part:  # fmt: skip
    """From exec to the first token. seconds: as in server.start.Running. startup: the engine's "startup".
    asked_s, told_s: since exec, around the first request; ttft_parts_s: of it."""
    phases = [Part(name=name, seconds=spent) for name, spent in startup["phases_s"].items()]
    built_s = startup["ready_s"] - startup["imports_s"]
    engine = whole(
        f"engine process (the text side took {seconds['text']:.2f} s beside it)", seconds["engine"],
        [
            Part(name="Python and imports, torch's the most", seconds=startup["imports_s"]),
            whole("from there until it serves", built_s, phases, "scheduler, tables and the rest"),
        ],
        "its launch and its word that it serves",
    )  # fmt: skip
    request = [Part(name=name, seconds=spent) for name, spent in ttft_parts_s.items()]
    parts = [
        Part(name="this process: Python and imports", seconds=seconds["imports"]),
        Part(name="model headers", seconds=seconds["open"]),
        engine,
        whole("first request", told_s - asked_s, request, "reading it and writing the answer"),
    ]
    return whole("from exec to the first token", told_s, parts, "endpoints and the rest")
