"""Lab 3, the batching explorer. Source: "The Mechanics of LLM Inference", What batching actually buys."""

from ridgeline.ledger import closed
from ridgeline.ledger.sums import Rows
from ridgeline.planner.lab import Chart, Lab, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.forms import both, chart, curve, gb, number, spread
from ridgeline.planner.labs.parts import WORKSPACE, Case, Values, whole


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
              *case.residents("B_max", lengths, WORKSPACE), log="xy",
              at_x={"this context": context}))


def _compute(values: Values) -> Result:
    case, context = Case.of(values), whole(values, "context")
    shape, device = case.shape, case.device
    bare, sequence = case.held(0, context), case.held(1, context) - case.held(0, context)
    star, cross = closed.ridge_batch(case.balance, case.s_w), bare / sequence
    most = case.resident(context, WORKSPACE)
    limits = {"the arithmetic (B*)": star, "the cache's bytes (B_cross)": cross, "memory (B_max)": most}
    binding = min(limits, key=lambda name: limits[name])
    flops = closed.decode_flops(shape, context) / case.ways  # of a token, on one device
    ceiling = flops / sequence
    many, step = case.decode(10**9, context), case.decode(max(most, 1), context)
    reads = "FLOPs / all bytes that move"
    numbers = (
        *both("b_star", "B* (arithmetic)", (star, case.setup.deployment.ridge_rows()), "sequences",
              ("s_w * peak / (2 * bandwidth)", "rows at which products take as long as reading all weights"),
              f"{case.s_w:g} * {case.balance:.4g} / 2", "of what is really read"),
        *both("b_cross", "B_cross (KV = weights)", (cross, case.exact_cross(context)), "sequences",
              ("weights / n / (KV / min(n, n_kv))", "weights read / cache read by a sequence"),
              f"{gb(bare)} / {gb(sequence)}", "of what is really read"),
        *both("b_max", "B_max (capacity)", (most, case.exact_resident(context, WORKSPACE)), "sequences",
              ("floor((memory - weights - workspace) / KV)",) * 2,
              f"({gb(case.memory_bytes)} - {gb(bare)} - {gb(WORKSPACE)}) / {gb(sequence)}",
              "windows and scales as they are"),
        number("binding", "Met first", binding, "", "the smallest of the three"),
        *both("intensity", "I at B_max", (most * flops / case.held(most, context), step.total("flops")
                                          / step.total("moved_bytes")), "FLOP/B",
              ("B (2P + 4LNd) / (weights + B KV)", reads),
              f"{most} * {flops:.4g} / {case.held(most, context):.4g}", "of all bytes that move"),
        *both("intensity_ceiling", "I ceiling (B to infinity)", (ceiling, many.total("flops")
                                                                 / many.total("moved_bytes")), "FLOP/B",
              ("2P / KV + 2g / s_c", reads),
              f"{2 * shape.num_params:.4g} / {gb(case.sequence_bytes(context))} "
              f"+ {closed.decode_attention_intensity(shape.group, case.s_c):.3g}", "of all bytes that move"),
        *both("throughput_ceiling", "Throughput ceiling", (
            device.bytes_per_s / sequence,
            case.setup.deployment.ceiling_rows_per_s(Rows(rows=1, start=context - 1, count=1))), "tok/s",
              ("bandwidth / KV, one device's part", "1 / time that one more sequence adds to a step"),
              f"{device.bytes_per_s:.4g} / {sequence:.4g}", "of what is really read"),
        number("ceiling_share", "Ceiling as a share of the ridge", ceiling / case.balance, "share",
               "I / I*", f"{ceiling:.4g} / {case.balance:.4g}", "nominal"),
        *both("throughput", "Throughput at B_max", (most / case.step_s(most, context), most / step.floor_s),
              "tok/s", ("B / step",) * 2, f"{most} / {case.step_s(most, context):.4g} s", "at the floor"),
        *both("step", "Step at B_max", (case.step_s(most, context), step.floor_s), "s",
              ("(weights + B KV) / bandwidth + collectives", "sum of lines' max(bytes, FLOPs) times"), "",
              "of what is really read"))
    charts = _charts(case, context, flops, {"B*": star, "B_cross": cross, "B_max": most})
    notes = ("B* is the batch at which reading the weights is worth their arithmetic. It is no target: the "
             "cache and the memory usually come first.",
             "Below B_cross another request is nearly free; above it, it lengthens everybody's step.",
             f"Bounds alone: no scheduling, no preemption; bf16 weights and {gb(WORKSPACE)} of workspace.",
             *case.notes())
    bar = case.memory(f"Each {device.name} at B_max", most, context)
    return Result(numbers=numbers, charts=charts, bars=(bar,), notes=notes)


BATCHING = Lab(
    key="batching", title="Batching explorer",
    lead="Three limits on a useful batch (arithmetic, the cache's bytes, memory) and how they change places.",
    controls=(parts.MODEL, parts.CONTEXT, parts.CACHE, parts.DEVICE, parts.TP), compute=_compute)
