"""Each term of a plan: its formula, the numbers that went in, where they come from and how far it may be
off."""

from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from ridgeline.ledger.deployment import LineSeconds
from ridgeline.models.adapter import MAX_RANK
from ridgeline.planner.plan import Plan
from ridgeline.planner.timing import mean_context, wearing_s

EXACT, SHEET = "config", "data sheet"
SURE, ABOVE, BELOW = (0.0, 0.0), (0.0, float("inf")), (-1.0, 0.0)  # a floor is passed, a ceiling never


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


def _term(key: str, value: float, unit: str, formula: str, inputs: str, source: str,
          band: tuple[float, float] | None = None) -> Term:
    return Term(key=key, value=value, unit=unit, formula=formula, inputs=inputs, source=source, band=band)


def explain(plan: Plan) -> tuple[Term, ...]:
    """The terms in the order in which they are used. What stands on a device's figures is assumed where one
    of these is, and then no bound."""
    found = (*_memory(plan), *_lines(plan), *_times(plan), *_batches(plan), *_rates(plan), *_factors(plan))
    if not plan.setup.assumed:
        return found
    return tuple(replace(one, source="assumed", band=None) if one.source == SHEET and "usd" not in one.key
                 else one for one in found)


def _memory(plan: Plan) -> list[Term]:
    memory, rows, room, ask = plan.memory, plan.steps.rows, plan.setup.rooms[0], plan.ask
    usual = plan.setup.deployment.efficiency.source("workspace_bytes")
    return [
        _term("weights", memory.weights, "bytes", "sum over tensors of their share's bytes, scales included",
              f"{plan.setup.layout.text()}, {plan.setup.numerics.weights}", EXACT, SURE),
        _term("kv_bytes_per_token", plan.exact.kv_bytes_per_token, "bytes",
              "sum over layers of what a token writes", f"cache {ask.kv}", EXACT, SURE),
        _term("kv_needed", memory.kv_needed, "bytes", "sequences of a device x cache at prompt + output",
              f"{rows} x {plan.setup.length} tokens, {ask.shared_prefix} of them once", EXACT, SURE),
        _term("kv_rounding", memory.kv_rounding, "bytes", "whole pages - needed, a part of a block each",
              f"blocks of {room.layout.block_tokens} tokens, pages of {room.layout.page_bytes} B", EXACT,
              SURE),
        _term("activations", memory.activations, "bytes", "widest block of a step + each sequence's logits",
              f"{room.step_bytes:.4g} B + {rows} x {room.row_bytes:.4g} B", "assumed"),
        _term("workspace", memory.workspace, "bytes", "graphs, libraries, buffers", "usual, or --workspace",
              EXACT if ask.workspace_bytes is not None else usual),
        *([_term("adapters", memory.adapters, "bytes", "adapters x pairs' ranks x (in + out) of each weight",
                 f"{ask.max_loras} of rank {ask.max_lora_rank or MAX_RANK}, 16 bits", EXACT, SURE)]
          if ask.max_loras else [])]


def _lines(plan: Plan) -> list[Term]:
    """Every operation of a decode step and of a prompt, layers and stages together."""
    terms = []
    for phase, part in (("decode", plan.steps.decode_rows), ("prefill", plan.steps.prefill_rows)):
        found: dict[str, list[LineSeconds]] = {}
        for line in plan.setup.deployment.lines([part]):
            found.setdefault(f"{phase}.{line.line.block}.{line.line.op}", []).append(line)
        for key, lines in found.items():
            seconds, sent = sum(x.floor_s for x in lines), sum(x.sent_bytes for x in lines)
            moved, flops = sum(x.moved_bytes for x in lines), sum(x.flops for x in lines)
            comm = lines[0].bound == "link"
            work = f"{moved:.4g} B, {flops:.4g} FLOP: {lines[0].bound} bound"
            terms.append(_term(
                key, seconds, "s", "bytes sent / link" if comm else "max(bytes / bandwidth, FLOPs / rate)",
                f"{sent:.4g} B sent" if comm else work, SHEET, ABOVE))
    return terms


def _times(plan: Plan) -> list[Term]:
    floor, estimate, output, sight = plan.steps.floor, plan.steps.estimate, plan.ask.output, plan.setup.sight
    eff, prompt = plan.setup.deployment.efficiency, plan.steps.prefill_rows
    known, source = None if eff.band == (0.0, 0.0) else eff.band, eff.source("bandwidth")
    at = f"{plan.steps.rows} rows at a context of {mean_context(plan.setup.ask)}"
    seen = [] if sight is None else [
        _term("encoder_s.estimate", estimate.encoder_s, "s", "max(FLOPs / rate, weights / bandwidth)",
              f"{sight.flops:.4g} FLOP of {sight.patches} patches", eff.source("encoder")),
        _term("preprocess_s.estimate", estimate.preprocess_s, "s", "tiles x time to cut one",
              f"{sight.tiles} x {eff.tile_s:g} s", eff.source("tile_s"))]
    return [
        *seen, *_worn(plan), _term("ttft_s.floor", floor.ttft_s, "s", "sum of the prompt's lines",
                     f"{prompt.count} tokens behind {prompt.start} cached", SHEET, ABOVE),
        _term("ttft_s.estimate", estimate.ttft_s, "s", "the same lines at reached bandwidth and rate",
              f"one prompt on idle devices, {estimate.transfer_s:.3g} s of transfer", source, known),
        _term("tpot_s.floor", floor.tpot_s, "s", "sum of the step's lines / tokens a step", at, SHEET, ABOVE),
        _term("tpot_s.estimate", estimate.tpot_s, "s", "the same at reached shares + latencies", at,
              source, known),
        _term("tpot_mixed_s.estimate", estimate.mixed_s, "s", "TPOT + rows / output x prefill, in between",
              f"{estimate.tpot_s:.4g} + {plan.steps.rows} / {output} x {estimate.prefill_s:.4g}", source,
              known),
        _term("e2e_s.estimate", plan.estimate.e2e_s, "s", "TTFT + (output - 1) TPOT",
              f"{estimate.ttft_s:.4g} + {output - 1} x {estimate.tpot_s:.4g}", source, known)]


def _worn(plan: Plan) -> list[Term]:
    """What adapters add to a step of decodes."""
    if not plan.ask.max_loras:
        return []
    floor, estimate = wearing_s(plan.setup, plan.steps.rows, plan.steps.decode_rows.count)
    eff = plan.setup.deployment.efficiency
    formula = "of a step: max(bytes of those worn / bandwidth, FLOPs / rate)"
    inputs = f"{plan.steps.rows} sequences wear {plan.ask.max_loras}, any as likely"
    return [_term("adapters_s.floor", float(floor), "s", formula, inputs, SHEET, ABOVE),
            _term("adapters_s.estimate", float(estimate), "s", formula, inputs, eff.source("bandwidth"),
                  None if eff.band == (0.0, 0.0) else eff.band)]


def _batches(plan: Plan) -> list[Term]:
    one, setup = plan.exact, plan.setup
    return [
        _term("b_star", one.b_star, "sequences", "rows whose products take as long as reading all weights",
              f"{setup.numerics.rates.packed:.4g} FLOP/s, {setup.device.bytes_per_s:.4g} B/s", SHEET, SURE),
        _term("b_cross", one.b_cross, "sequences", "rows whose cache weighs what a step's weights do",
              f"context {mean_context(setup.ask)}", EXACT, SURE),
        _term("b_max", one.b_max, "sequences", "(memory - fixed terms) / (pages + logits of a sequence)",
              f"{plan.memory.capacity:.4g} B a device, {setup.lanes} groups of devices", EXACT)]


def _rates(plan: Plan) -> list[Term]:
    """What follows from times and batches."""
    one, steps, moved = plan.estimate, plan.steps, plan.steps.decode.total("moved_bytes")
    eff, priced = plan.setup.deployment.efficiency, plan.ask.price_usd_per_hour is not None
    known, source = None if eff.band == (0.0, 0.0) else eff.band, eff.source("bandwidth")
    found = [
        _term("kv_share_of_step", one.kv_share_of_step, "share", "cache bytes of a step / all of its bytes",
              f"{steps.decode.total('cache_bytes'):.4g} / {moved:.4g} B", EXACT, SURE),
        _term("intensity", one.intensity, "FLOP/B", "FLOPs of a step / its bytes",
              f"{steps.decode.total('flops'):.4g} / {moved:.4g}", EXACT, SURE),
        _term("intensity_ceiling", one.intensity_ceiling, "FLOP/B", "the same at a batch without end", "",
              EXACT, SURE),
        _term("throughput_ceiling_tok_s", one.throughput_ceiling_tok_s, "tok/s",
              "1 / what one more sequence adds to a step, weights read for nothing", "", SHEET, BELOW),
        _term("max_context_tokens", one.max_context_tokens, "tokens", "the longest sequence that fits alone",
              f"{plan.memory.capacity:.4g} B a device", EXACT, SURE),
        _term("output_tok_s.estimate", one.output_tok_s, "tok/s", "sequences / TPOT",
              f"{plan.batch} / {one.tpot_s:.4g} s", source, known)]
    if one.cost_per_million_usd is not None:
        found.append(_term(
            "cost_per_million_usd.estimate", one.cost_per_million_usd, "USD",
            "devices x price / tokens an hour, prompts in between",
            f"{plan.setup.layout.num_devices} devices, {plan.sustained_tok_s[1]:.4g} tok/s",
            EXACT if priced else SHEET, known))
    return found


# What each factor is multiplied with, or how often its time counts.
_FACTORS = {
    "bandwidth": "share of the memory's bytes/s, weights", "experts": "the same, routed experts",
    "cache": "the same, keys and values", "prefill": "share of the dense rate, products",
    "experts_prefill": "the same, routed experts", "attention": "the same, attention's pairs",
    "encoder": "the same, a vision encoder", "narrow": "kept of these rates by each halving of the numbers",
    "unpack": "kept of the bandwidth by each halving of unpacked weights", "step_s": "once a step",
    "row_s": "once a sequence and step", "launch_s": "once a kernel",
    "packed_s": "once a kernel that quantizes its input", "blocked_s": "on top where it does so by block",
    "expert_s": "once a layer of experts", "each_s": "once an expert that a step reads",
    "eager_s": "least time of a prompt's kernels on the host, each",
    "stream": "times that a block's input is moved", "collective_s": "once a collective",
    "hop_s": "once a further hop around a ring", "link": "share of a link's bytes/s",
    "skew": "Zipf exponent of the routers' choices", "mix": "share of a wave's prompts that delays tokens",
    "first_s": "once a first token, of a fit alone", "tile_s": "once an image tile",
    "workspace_bytes": "beside weights and cache"}


def _factors(plan: Plan) -> list[Term]:
    eff = plan.setup.deployment.efficiency
    return [_term(f"efficiency.{name}", float(getattr(eff, name)),
                  "s" if name.endswith("_s") else "bytes" if name.endswith("_bytes") else "", formula, "",
                  eff.source(name)) for name, formula in _FACTORS.items()]


def explain_json(plan: Plan) -> list[dict[str, Any]]:
    """The terms; what has no end (a band, a batch that is never reached) is None."""
    def known(value: float) -> float | None:
        return value if isfinite(value) else None

    return [{**asdict(x), "value": known(x.value), "band": x.band and [known(one) for one in x.band]}
            for x in explain(plan)]


def _band(term: Term) -> str:
    if term.band is None:
        return "error not measured"
    low, high = term.band
    if low == high == 0:
        return "exact"
    if low == -1:
        return "a ceiling: never above"
    return "a floor: never below" if high == float("inf") else f"{low:+.0%} to {high:+.0%}"


def explain_text(plan: Plan) -> str:
    """A line a term."""
    return "\n".join(f"{x.key:<32}{x.value:>12.5g} {x.unit:<9} = {x.formula}"
                     f"{f' [{x.inputs}]' if x.inputs else ''}; {x.source}, {_band(x)}" for x in explain(plan))
