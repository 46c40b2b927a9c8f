"""Each term of a plan: its formula, the numbers that went in, where they come from and how far it may be
off."""

from dataclasses import asdict, dataclass
from typing import Any

from ridgeline.ledger.deployment import LineSeconds
from ridgeline.planner.plan import Plan
from ridgeline.planner.timing import mean_context

EXACT, SHEET = "config", "data sheet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """source: "config" (of the model and the ask), "data sheet" (of the device), "assumed", "fitted" or
    "measured". band: the relative error (low, high); None where nobody measured it."""

    key: str
    value: float
    unit: str
    formula: str
    inputs: str
    source: str
    band: tuple[float, float] | None = None


def explain(plan: Plan) -> tuple[Term, ...]:
    """The terms in the order in which they are used."""
    return (*_memory(plan), *_lines(plan), *_times(plan), *_batches(plan), *_factors(plan))


def _memory(plan: Plan) -> list[Term]:
    memory, one, rows, exact = plan.memory, plan.exact, plan.steps.rows, (0.0, 0.0)
    layout, room = plan.setup.layout, plan.setup.rooms[0]
    workspace = plan.setup.deployment.efficiency.source("workspace_bytes")
    return [
        Term(key="weights", value=memory.weights, unit="bytes", source=EXACT, band=exact,
             formula="sum over tensors of their share's bytes, scales included",
             inputs=f"{layout.text()}, {plan.setup.numerics.weights}"),
        Term(key="kv_bytes_per_token", value=one.kv_bytes_per_token, unit="bytes", source=EXACT, band=exact,
             formula="sum over layers of what a token writes", inputs=f"cache {plan.ask.kv}"),
        Term(key="kv_needed", value=memory.kv_needed, unit="bytes", source=EXACT, band=exact,
             formula="sequences of a device x cache at prompt + output, a shared prefix once",
             inputs=f"{rows} x {plan.setup.length} tokens"),
        Term(key="kv_rounding", value=memory.kv_rounding, unit="bytes", source=EXACT, band=exact,
             formula="whole pages - needed: at most a part of a block a sequence",
             inputs=f"blocks of {room.layout.block_tokens} tokens, pages of {room.layout.page_bytes} B"),
        Term(key="activations", value=memory.activations, unit="bytes", source="assumed",
             formula="widest block of the widest step + logits and sampling of each sequence",
             inputs=f"{room.step_bytes:.4g} B + {rows} x {room.row_bytes:.4g} B"),
        Term(key="workspace", value=memory.workspace, unit="bytes", formula="graphs, libraries, buffers",
             inputs="--workspace" if plan.ask.workspace_bytes is not None else "the usual",
             source="config" if plan.ask.workspace_bytes is not None else workspace)]


def _lines(plan: Plan) -> list[Term]:
    """Every operation of a decode step and of a prompt, layers and stages together."""
    terms = []
    for phase, part in (("decode", plan.steps.decode_rows), ("prefill", plan.steps.prefill_rows)):
        found: dict[str, list[LineSeconds]] = {}
        for line in plan.setup.deployment.lines([part]):
            found.setdefault(f"{phase}.{line.line.block}.{line.line.op}", []).append(line)
        for key, lines in found.items():
            sent, moved = sum(x.sent_bytes for x in lines), sum(x.moved_bytes for x in lines)
            flops, comm = sum(x.flops for x in lines), lines[0].bound == "link"
            work = f"{moved:.4g} B, {flops:.4g} FLOP: {lines[0].bound} bound"
            terms.append(Term(
                key=key, value=sum(x.floor_s for x in lines), unit="s", source=SHEET,
                formula="bytes sent / link" if comm else "max(bytes / bandwidth, FLOPs / rate)",
                inputs=f"{sent:.4g} B sent" if comm else work, band=(0.0, float("inf"))))
    return terms


def _times(plan: Plan) -> list[Term]:
    floor, estimate, output = plan.steps.floor, plan.steps.estimate, plan.ask.output
    eff = plan.setup.deployment.efficiency
    known = None if eff.band == (0.0, 0.0) else eff.band
    source = eff.source("bandwidth")
    above = (0.0, float("inf"))  # a floor is passed and never undercut
    at = f"{plan.steps.rows} rows at a context of {mean_context(plan.setup.ask)}"
    seen = [] if plan.setup.sight is None else [
        Term(key="encoder_s.estimate", value=estimate.encoder_s, unit="s", source=eff.source("encoder"),
             formula="max(FLOPs / reached rate, weights / reached bandwidth)",
             inputs=f"{plan.setup.sight.flops:.4g} FLOP of {plan.setup.sight.patches} patches"),
        Term(key="preprocess_s.estimate", value=estimate.preprocess_s, unit="s", source=eff.source("tile_s"),
             formula="tiles x time to cut one", inputs=f"{plan.setup.sight.tiles} x {eff.tile_s:g} s")]
    return [
        *seen, Term(key="ttft_s.floor", value=floor.ttft_s, unit="s", source=SHEET, band=above,
             formula="sum of the prompt's lines",
             inputs=f"{plan.steps.prefill_rows.count} tokens behind {plan.steps.prefill_rows.start} cached"),
        Term(key="ttft_s.estimate", value=estimate.ttft_s, unit="s", source=source, band=known,
             formula="each line's larger of bytes / reached bandwidth and FLOPs / reached rate",
             inputs=f"one prompt on idle devices{', its cache sent over' if estimate.transfer_s else ''}"),
        Term(key="tpot_s.floor", value=floor.tpot_s, unit="s", inputs=at, source=SHEET, band=above,
             formula="sum of the step's lines / tokens a step"),
        Term(key="tpot_s.estimate", value=estimate.tpot_s, unit="s", inputs=at, source=source, band=known,
             formula="the same over reached shares + collectives x latency"),
        Term(key="tpot_mixed_s.estimate", value=estimate.mixed_s, unit="s", source=source, band=known,
             formula="TPOT + rows / output x prefill: prompts that replace finished sequences",
             inputs=f"{estimate.tpot_s:.4g} + {plan.steps.rows} / {output} x {estimate.prefill_s:.4g}"),
        Term(key="e2e_s.estimate", value=plan.estimate.e2e_s, unit="s", source=source, band=known,
             formula="TTFT + (output - 1) TPOT",
             inputs=f"{estimate.ttft_s:.4g} + {output - 1} x {estimate.tpot_s:.4g}")]


def _batches(plan: Plan) -> list[Term]:
    one, memory, exact, setup = plan.exact, plan.memory, (0.0, 0.0), plan.setup
    return [
        Term(key="b_star", value=one.b_star, unit="sequences", source=SHEET, band=exact,
             formula="rows whose products take as long as reading all weights",
             inputs=f"{setup.numerics.rates.packed:.4g} FLOP/s, {setup.device.bytes_per_s:.4g} B/s"),
        Term(key="b_cross", value=one.b_cross, unit="sequences", source=EXACT, band=exact,
             formula="rows whose cache is as many bytes as the weights of a step",
             inputs=f"context {mean_context(setup.ask)}"),
        Term(key="b_max", value=one.b_max, unit="sequences", source=EXACT, band=None,
             formula="(memory - weights - workspace - activations) / (pages + logits of a sequence)",
             inputs=f"{memory.capacity:.4g} B a device, {setup.lanes} groups of devices")]


def _factors(plan: Plan) -> list[Term]:
    eff = plan.setup.deployment.efficiency
    return [Term(key=f"efficiency.{name}", value=float(getattr(eff, name)), unit="", formula=what, inputs="",
                 source=eff.source(name)) for name, what in
            (("bandwidth", "share of the bytes/s that is reached"),
             ("prefill", "share of the FLOP/s that is reached"), ("step_s", "beside its kernels, a step"),
             ("collective_s", "latency of a collective"))]


def explain_json(plan: Plan) -> list[dict[str, Any]]:
    """The terms; a band without an upper end has None there."""
    return [{**asdict(x), "band": x.band and [None if one == float("inf") else one for one in x.band]}
            for x in explain(plan)]


def _band(term: Term) -> str:
    if term.band is None:
        return "error not measured"
    low, high = term.band
    if low == high == 0:
        return "exact"
    return "a floor: never below" if high == float("inf") else f"{low:+.0%} to {high:+.0%}"


def explain_text(plan: Plan) -> str:
    """A line a term."""
    return "\n".join(f"{x.key:<32}{x.value:>12.5g} {x.unit:<9} = {x.formula}"
                     f"{f' [{x.inputs}]' if x.inputs else ''}; {x.source}, {_band(x)}" for x in explain(plan))
