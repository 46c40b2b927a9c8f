"""Draws docs/figures/steps.svg: every step of a small workload, as wide as it took and as high as its floor.

Run `.venv/bin/python docs/figures/steps.py` on an idle machine. The filled area is the time that bytes and
FLOPs make unavoidable at rates measured in the same run; the empty area above it is what the engine adds.
"""

from pathlib import Path

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.trace import RingTrace, StepRecord
from ridgeline.bench.drive import Driver, Prompts, Shape
from ridgeline.bench.report import StepOf
from ridgeline.engine.build import build_engine
from ridgeline.engine.probe import probe_machine
from ridgeline.ledger.profile import MachineProfile

WORKLOAD = Shape(num_requests=12, concurrency=4, prompt_tokens=160, output_tokens=48)
WARM_UP = Shape(num_requests=4, concurrency=4, prompt_tokens=160, output_tokens=8)
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 300, 56, 56, 44
COLOURS = {"decode": "#2a78b5", "prefill": "#d1772d", "mixed": "#7d6bb0"}
Drawn = tuple[StepRecord, float]


def kind_of(record: StepRecord) -> str:
    if not record.num_chunks:
        return "decode"
    return "mixed" if record.num_decodes else "prefill"


def measure() -> tuple[list[Drawn], MachineProfile, str]:
    """Steps with their floors, the machine, and what ran."""
    trace = RingTrace(num_steps=1 << 16)
    engine = build_engine(EngineConfig(progress=False), trace=trace)
    try:
        machine = probe_machine("figure", engine.info["profile"]["decode_read_bytes"])
        price = engine.price(machine)
        driver = Driver(engine.loop, trace, WallClock(), Prompts(engine.spec.vocab_size, seed=1))
        driver.run(WARM_UP)
        steps = driver.run(WORKLOAD).steps
        return [(s, price(StepOf(s))) for s in steps], machine, f"{engine.name}, {engine.numerics}"
    finally:
        engine.close()


def draw(steps: list[Drawn], machine: MachineProfile, what: str) -> str:
    begin, end = steps[0][0].started_s, steps[-1][0].finished_s
    across, down = (WIDTH - LEFT - 16) / (end - begin), HEIGHT - TOP - BOTTOM
    floor_s, busy_s = sum(floor for _, floor in steps), sum(record.measured_s for record, _ in steps)
    parts = [_text(LEFT, 20, f"{what}: {WORKLOAD.num_requests} requests, {WORKLOAD.concurrency} at a time; "
                   f"floor {floor_s:.2f} s of {busy_s:.2f} s measured ({floor_s / busy_s:.0%})", 14),
             _text(LEFT, 38, f"{machine.about['processor']}, {machine.threads} threads; measured in the same "
                   f"run: {machine.text()}", 12)]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = TOP + down * (1 - share)
        parts += [f'<path d="M{LEFT} {y:.1f}H{WIDTH - 16}" stroke="#ccc" stroke-width=".7"/>',
                  _text(LEFT - 8, y + 4, f"{share:.0%}", 11, "end")]
    for record, floor in steps:
        x, wide = LEFT + (record.started_s - begin) * across, max(record.measured_s * across, 0.2)
        high = down * min(floor / record.measured_s, 1)
        parts.append(f'<rect x="{x:.2f}" y="{TOP}" width="{wide:.2f}" height="{down}" fill="#eee"/>'
                     f'<rect x="{x:.2f}" y="{TOP + down - high:.2f}" width="{wide:.2f}" height="{high:.2f}" '
                     f'fill="{COLOURS[kind_of(record)]}"/>')
    for second in range(0, int(end - begin) + 1, 1 + int(end - begin) // 12):
        parts.append(_text(LEFT + second * across, HEIGHT - BOTTOM + 16, f"{second} s", 11, "middle"))
    for index, (kind, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * index
        parts += [f'<rect x="{x}" y="{HEIGHT - 16}" width="10" height="10" fill="{colour}"/>',
                  _text(x + 15, HEIGHT - 7, kind, 12)]
    body = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'font-family="sans-serif"><title>Floor of each step as a share of its measured time</title>\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n')


def _text(x: float, y: float, text: str, size: int, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="#333">{text}</text>'


if __name__ == "__main__":
    path = Path(__file__).with_suffix(".svg")
    path.write_text(draw(*measure()), encoding="utf-8")
    print(path)
