"""Lab 3, the batching explorer. Source: "The Mechanics of LLM Inference", What batching actually buys."""

from ridgeline.ledger import closed
from ridgeline.ledger.sums import Rows
from ridgeline.planner.lab import Bar, Chart, Lab, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.parts import ASSUMED, Case, Values, chart, curve, gb, number, spread, whole


def _charts(case: Case, context: int, flops: float, limits: dict[str, float]) -> tuple[Chart, ...]:
    """flops: of a token, on one device."""
    batches, lengths = spread(1, 4096), spread(512, 131072)
    star, cross = limits["B*"], limits["B_cross"]
    ceiling = case.device.bytes_per_s / (case.held(1, context) - case.held(0, context))
    return (
        chart("intensity", "Intensity against batch", "sequences", "FLOP/B",
              curve("this context", batches, lambda b: b * flops / case.held(b, context)),
              curve("weights alone", batches, lambda b: 2 * b / case.s_w), log="xy", at_x=limits,
              at_y={"ridge": case.balance}),
        chart("throughput", "Throughput against batch", "sequences", "tok/s",
              curve("all sequences", batches, lambda b: b / case.step_s(b, context)), log="x", at_x=limits,
              at_y={"ceiling": ceiling}),
        chart("limits", "The three limits against context", "context, tokens", "sequences",
              curve("B*", lengths, lambda n: star), curve("B_cross", lengths, lambda n: cross * context / n),
              *case.residents("B_max", lengths, ASSUMED.workspace_bytes), log="xy",
              at_x={"this context": context}))


def _compute(values: Values) -> Result:
    case, context = Case.of(values), whole(values, "context")
    shape, device, space = case.shape, case.device, ASSUMED.workspace_bytes
    bare, sequence = case.held(0, context), case.held(1, context) - case.held(0, context)
    star, cross = closed.ridge_batch(case.balance, case.s_w), bare / sequence
    most = case.resident(context, space)
    limits = {"the arithmetic (B*)": star, "the cache's bytes (B_cross)": cross, "memory (B_max)": most}
    binding = min(limits, key=lambda name: limits[name])
    flops = closed.decode_flops(shape, context) / case.ways  # of a token, on one device
    ceiling = flops / sequence
    numbers = (
        number("b_star", "B* (arithmetic)", star, "sequences", "s_w * peak / (2 * bandwidth)",
               f"{case.s_w:g} * {case.balance:.4g} / 2", "nominal"),
        number("b_star", "B* of what is really read", case.setup.deployment.ridge_rows(), "sequences",
               "rows at which products take as long as reading all weights", "", "exact"),
        number("b_cross", "B_cross (KV = weights)", cross, "sequences", "weights / n / (KV / min(n, n_kv))",
               f"{gb(bare)} / {gb(sequence)}", "nominal"),
        number("b_max", "B_max (capacity)", most, "sequences", "floor((memory - weights - workspace) / KV)",
               f"({gb(case.memory_bytes)} - {gb(bare)} - {gb(space)}) / {gb(sequence)}", "nominal"),
        number("b_max", "B_max, windows and scales as they are", case.exact_resident(context, space),
               "sequences", "floor((memory - weights - workspace) / KV)", "", "exact"),
        number("binding", "Met first", binding, "", "the smallest of the three"),
        number("intensity", "I at B_max", most * flops / case.held(most, context), "FLOP/B",
               "B (2P + 4LNd) / (weights + B KV)",
               f"{most} * {flops:.4g} / {case.held(most, context):.4g}", "nominal"),
        number("intensity_ceiling", "I ceiling (B to infinity)", ceiling, "FLOP/B", "2P / KV + 2g / s_c",
               f"{2 * shape.num_params:.4g} / {gb(case.sequence_bytes(context))} "
               f"+ {closed.decode_attention_intensity(shape.group, case.s_c):.3g}", "nominal"),
        number("ceiling_share", "Ceiling as a share of the ridge", ceiling / case.balance, "", "I / I*",
               f"{ceiling:.4g} / {case.balance:.4g}", "nominal"),
        number("throughput_ceiling", "Throughput ceiling", device.bytes_per_s / sequence, "tok/s",
               "bandwidth / KV, one device's part", f"{device.bytes_per_s:.4g} / {sequence:.4g}", "nominal"),
        number("throughput_ceiling", "Throughput ceiling of what is really read", case.setup.deployment
               .ceiling_rows_per_s(Rows(rows=1, start=context - 1, count=1)), "tok/s",
               "1 / time that one more sequence adds to a step", "", "exact"),
        number("throughput", "Throughput at B_max", most / case.step_s(most, context), "tok/s", "B / step",
               f"{most} / {case.step_s(most, context):.4g} s", "nominal"),
        number("step", "Step at B_max", case.decode(max(most, 1), context).floor_s, "s",
               "sum of lines' max(bytes, FLOPs) times", "", "exact"))
    charts = _charts(case, context, flops, {"B*": star, "B_cross": cross, "B_max": most})
    notes = ("B* is the batch at which reading the weights is worth their arithmetic. It is no target: the "
             "cache and the memory usually come first.",
             "Below B_cross another request is nearly free; above it, it lengthens everybody's step.",
             f"Bounds alone: no scheduling, no preemption; bf16 weights and {gb(space)} of workspace.",
             *case.notes())
    bar = Bar(key="memory", title=f"Each {device.name} at B_max", total=case.memory_bytes,
              parts=(("weights", bare), ("KV cache", most * sequence), ("workspace", space)))
    return Result(numbers=numbers, charts=charts, bars=(bar,), notes=notes)


BATCHING = Lab(
    key="batching", title="Batching explorer",
    lead="Three limits on a useful batch (arithmetic, the cache's bytes, memory) and how they change places.",
    controls=(parts.MODEL, parts.CONTEXT, parts.CACHE, parts.DEVICE, parts.TP), compute=_compute)
