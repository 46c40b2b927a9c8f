"""Lab 1, the KV cache calculator. Source: "The Mechanics of LLM Inference", The KV memory formula."""

from dataclasses import replace

from ridgeline.planner.lab import Lab, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.forms import both, chart, gb, number, spread
from ridgeline.planner.labs.parts import ASSUMED, Case, Values, whole


def _compute(values: Values) -> Result:
    case, context, batch = Case.of(values), whole(values, "context"), whole(values, "batch")
    shape, space = case.shape, ASSUMED.workspace_bytes
    per_token, sequence = case.sequence_bytes(1), case.sequence_bytes(context)
    total, used = batch * sequence, case.weight_bytes + batch * sequence
    free = f"({gb(case.memory_bytes)} - {gb(case.weight_bytes)}"
    numbers = (
        number("kv_per_token", "KV per token", per_token, "bytes", "2 * L * n_kv * head_dim * s_c",
               f"{shape.kv_elements:g} elements * {case.s_c:g} B"),
        *both("kv_per_sequence", "KV per sequence", (sequence, case.exact_sequence_bytes(context)), "bytes",
              ("N * KV per token", "sum over layers of what each keeps"), f"{context} * {per_token:g} B",
              "windows and states as they are"),
        number("kv_total", "KV total", total, "bytes", "B * KV per sequence", f"{batch} * {gb(sequence)}"),
        *both("weights", "Weights", (case.weight_bytes, case.exact_weights_bytes()), "bytes",
              ("P * s_w", "sum over tensors in their formats"), f"{shape.num_params:.4g} * {case.s_w:g} B",
              "scales included, tables in bf16"),
        number("device_used", "Device used", used, "bytes", "weights + KV total",
               f"{gb(case.weight_bytes)} + {gb(total)}"),
        number("max_concurrency", "Max concurrency, no workspace", case.resident(context), "sequences",
               "floor((memory - weights) / KV per sequence)", f"{free}) / {gb(sequence)}"),
        *both("max_concurrency_workspace", f"Max concurrency beside {gb(space)} of workspace",
              (case.resident(context, space), case.exact_resident(context, space)), "sequences",
              ("floor((memory - weights - workspace) / KV per sequence)",) * 2,
              f"{free} - {gb(space)}) / {gb(sequence)}", "windows and scales as they are"),
        number("kv_read_per_step", "KV read a decode step", total, "bytes", "all of it, every step",
               f"{batch} * {gb(sequence)}"),
        number("device_share", "Share of the device used", used / case.memory_bytes, "share",
               "(weights + KV total) / memory", f"{gb(used)} / {gb(case.memory_bytes)}"),
        number("kv_read_s", "Time to read it", total / case.device.bytes_per_s, "s", "KV total / bandwidth",
               f"{gb(total)} / {case.device.bytes_per_s / 1e12:g} TB/s"))
    lengths = spread(512, 131072)
    charts = (chart("concurrency", "Resident sequences against context", "context, tokens", "sequences",
                    *case.residents("no workspace", lengths),
                    *case.residents("with workspace", lengths, space), log="xy",
                    at_x={"this context": context}),)
    notes = ["Capacity alone: no allocator overhead and no fragmentation. Pages waste at most one part of a "
             "block a sequence; a few percent on top of the formula are usual.",
             "Weight precision changes the weights and not the cache; cache precision the cache alone.",
             *case.notes()]
    if used > case.memory_bytes:
        notes.insert(0, f"This does not fit: {gb(used - case.memory_bytes)} too much.")
    return Result(numbers=numbers, charts=charts, notes=tuple(notes),
                  bars=(case.memory(case.device.name, batch, context, space=0),))


KV_CACHE = Lab(
    key="kv-cache", title="KV cache calculator",
    lead="What a context, a number of users and a precision take of a device's memory, and how many fit.",
    controls=(parts.MODEL, parts.CONTEXT, replace(parts.BATCH, label="Concurrent sequences", default=8),
              parts.CACHE, parts.WEIGHT, parts.DEVICE),
    compute=_compute)
