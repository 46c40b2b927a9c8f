"""Draws docs/figures/prefix_hits.svg: how much of a trace's prompts a prefix cache finds, by its size.

Run `.venv/bin/python docs/figures/prefix_hits.py conversation_trace.jsonl` with Mooncake's trace
(kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0). Every point is the trace through the KV manager
that serves.
"""

import sys
from collections.abc import Sequence
from math import log
from pathlib import Path

from ridgeline.ledger.memory import needed_cache_bytes
from ridgeline.models.catalog import find_model
from ridgeline.sim.reuse import Reuse, ideal_reuse, reuse
from ridgeline.workload.ask import WorkloadAsk
from ridgeline.workload.make import make_workload
from ridgeline.workload.offered import Offered

MODEL, ELEMENT = "llama-3-8b", 2
SIZES = tuple(1 << power for power in range(7, 19))  # blocks
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 380, 64, 56, 60, 66
LINE, IDEAL = "#2a78b5", "#d1772d"


def draw(name: str, requests: Sequence[Offered], ideal: Reuse, found: dict[int, Reuse]) -> str:
    size, top = requests[0].block_tokens, 0.4
    low, high, end = min(found), max(found), WIDTH - RIGHT

    def x(blocks: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * log(blocks / low) / log(high / low)

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share / top)

    parts = [_text(LEFT, 22, f"{name}: share of prompt blocks that the prefix cache finds, by its size", 15),
             _text(LEFT, 42, f"{len(requests)} requests, {ideal.blocks} blocks of {size} tokens; the least "
                   f"recently used goes first; bytes of {MODEL} in 16 bit", 12)]
    for percent in range(0, 41, 10):
        parts += [f'<path d="M{LEFT} {y(percent / 100):.1f}H{end}" stroke="#ccc" stroke-width=".7"/>',
                  _text(LEFT - 8, y(percent / 100) + 4, f"{percent}%", 11, "end")]
    for blocks in list(found)[::2]:
        tokens = blocks * size
        gigabytes = needed_cache_bytes(find_model(MODEL), tokens, ELEMENT) / 1e9
        parts += [_text(x(blocks), HEIGHT - BOTTOM + 18, f"{gigabytes:,.0f} GB", 11, "middle"),
                  _text(x(blocks), HEIGHT - BOTTOM + 34, f"{tokens / 1e6:.2g} M tokens", 11, "middle")]
    curve = " ".join(f"{x(blocks):.1f},{y(one.block_rate):.1f}" for blocks, one in found.items())
    parts += [f'<path d="M{LEFT} {y(ideal.block_rate):.1f}H{end}" stroke="{IDEAL}" stroke-width="1.5" '
              'stroke-dasharray="6 4"/>',
              _text(LEFT + 4, y(ideal.block_rate) - 6, f"a cache without end: {ideal.block_rate:.1%}", 12),
              f'<polyline points="{curve}" fill="none" stroke="{LINE}" stroke-width="2"/>']
    for blocks, one in found.items():
        parts += [f'<circle cx="{x(blocks):.1f}" cy="{y(one.block_rate):.1f}" r="3.5" fill="{LINE}"/>',
                  _text(x(blocks) + 6, y(one.block_rate) + 15, f"{one.block_rate:.1%}", 11)]
    body = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'font-family="sans-serif"><title>Prefix hits by the size of the cache</title>\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n')


def _text(x: float, y: float, text: str, size: int, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="#333">{text}</text>'


if __name__ == "__main__":
    trace = Path(sys.argv[1])
    offered = make_workload(WorkloadAsk(trace=f"mooncake:{trace}")).requests
    path = Path(__file__).with_suffix(".svg")
    path.write_text(draw(f"Mooncake, {trace.stem}", offered, ideal_reuse(offered),
                         {blocks: reuse(offered, blocks) for blocks in SIZES}), encoding="utf-8")
    print(path)
