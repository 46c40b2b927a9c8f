"""Lab 2, the serving planner. Source: "The Mechanics of LLM Inference", The inference memory ledger."""

from ridgeline.ledger import closed
from ridgeline.planner.lab import Bar, Lab, Number, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.parts import ASSUMED, Case, Values, chart, curve, gb, number, spread, whole


def _notes(case: Case, needed: float) -> tuple[str, ...]:
    notes = [
        "Times are floors of a perfect engine: real ones land 20 to 50 % above the bandwidth floor. The "
        f"prompt runs at an assumed {ASSUMED.prefill:.0%} of the dense peak, and a collective takes an "
        f"assumed {ASSUMED.collective_s * 1e6:g} µs, two a layer.",
        "TPOT is taken at the mean context of an answer, prompt + output / 2; TTFT is of one prompt alone, "
        "and of the last where a whole batch arrives at once.", *case.notes()]
    if needed > case.memory_bytes:
        notes.insert(0, f"This does not fit: {gb(needed - case.memory_bytes)} too much on each device.")
    if case.ways > 1:
        notes.append("The exact reading counts what devices send over their links, slow beyond those that "
                     "are joined directly; the nominal one counts latencies alone.")
    if case.ways > case.shape.num_kv_heads:
        notes.insert(0, f"{case.ways} devices share {case.shape.num_kv_heads} KV heads: the cache is cut by "
                     f"{case.shape.num_kv_heads} alone, and each head is held "
                     f"{closed.kv_copies(case.shape, case.ways):g} times.")
    return tuple(notes)


def _memory(case: Case, batch: int, most: int) -> tuple[Number, ...]:
    held, space = case.held(batch, most), ASSUMED.workspace_bytes
    return (
        number("fits", "Fits?", held + space <= case.memory_bytes, "",
               "weights / n + B * KV / min(n, n_kv) + workspace <= memory",
               f"{gb(held)} + {gb(space)} <= {gb(case.memory_bytes)}"),
        number("needed", "Needed on each device", held + space, "bytes",
               "weights / n + B * KV(prompt + output) / min(n, n_kv) + workspace",
               f"{gb(case.held(0, most))} + {gb(held - case.held(0, most))} + {gb(space)}"))


def _latency(case: Case, prompt: int, output: int, batch: int, mean: float) -> tuple[Number, ...]:
    ttft, tpot, shape = case.prompt_s(prompt), case.step_s(batch, mean), case.shape
    flops = closed.prefill_flops(shape, prompt)
    peak = f"({case.ways} * {case.rate:.4g} * {ASSUMED.prefill:g})"
    exact, held, first = case.decode(batch, round(mean)), case.held(batch, mean), case.prefill(prompt)
    return (
        number("ttft", "TTFT, one prompt", ttft, "s",
               "(2PN + 2LN^2d) / (n * peak * share) [+ unpacking] + collectives",
               f"{flops:.4g} / {peak}", "nominal"),
        number("ttft", "TTFT, one prompt, floor at the whole dense peak", first.floor_s, "s",
               "sum of lines' max(bytes / bandwidth, FLOPs / peak), + bytes sent / link", "", "exact"),
        number("ttft_estimate", "TTFT, estimate", first.estimate_s, "s",
               "the same at assumed shares of bandwidth and peak", "", "exact"),
        number("ttft_batch", "TTFT, the last of a batch that arrives at once", batch * ttft, "s", "B * TTFT",
               f"{batch} * {ttft:.4g} s", "nominal"),
        number("tpot", "TPOT", tpot, "s", "(weights + B * KV) / (n * bandwidth) + 2L * collective",
               f"{held:.4g} B / {case.device.bytes_per_s:.4g} B/s + {case.collectives_s:.3g} s, at a "
               f"context of {mean:g}", "nominal"),
        number("tpot", "TPOT, floor of what is really read and computed", exact.floor_s, "s",
               "sum of lines' max(bytes / bandwidth, FLOPs / peak), + bytes sent / link",
               f"at a context of {mean:g}", "exact"),
        number("tpot_estimate", "TPOT, estimate", exact.estimate_s, "s",
               "the same at assumed shares of bandwidth and peak, and the collectives' latency",
               f"{ASSUMED.bandwidth:.0%} and {ASSUMED.prefill:.0%}, {case.collectives_s:.3g} s", "exact"),
        number("e2e", "E2E latency", closed.end_to_end(ttft, tpot, output), "s", "TTFT + (N_o - 1) * TPOT",
               f"{ttft:.4g} + {output - 1} * {tpot:.4g}", "nominal"))


def _compute(values: Values) -> Result:
    case = Case.of(values)
    prompt, output, batch = (whole(values, key) for key in ("prompt", "output", "batch"))
    mean = prompt + output / 2
    tpot, shape = case.step_s(batch, mean), case.shape
    held, bare = case.held(batch, mean), case.held(0, mean)
    step_bytes = closed.step_bytes(shape, batch, mean, case.s_w, case.s_c)
    flops = batch * closed.decode_flops(shape, mean)
    numbers = (
        *_memory(case, batch, prompt + output), *_latency(case, prompt, output, batch, mean),
        number("output_tok_s", "Output tok/s, all sequences", batch / tpot, "tok/s", "B / TPOT",
               f"{batch} / {tpot:.4g}", "nominal"),
        number("user_tok_s", "Per-user tok/s", 1 / tpot, "tok/s", "1 / TPOT", f"1 / {tpot:.4g}", "nominal"),
        number("kv_share", "KV share of step bytes", (held - bare) / held, "",
               "KV / (weights + KV), of one device", f"{gb(held - bare)} / {gb(held)}", "nominal"),
        number("intensity", "Decode intensity", flops / step_bytes, "FLOP/B",
               "B (2P + 4LNd) / (weights + B KV)",
               f"{flops:.4g} / {step_bytes:.4g}; the ridge is at {case.balance:.0f}", "nominal"))
    batches = spread(1, 1024)
    marks = {"this batch": batch, "memory is full": case.resident(prompt + output, ASSUMED.workspace_bytes)}
    charts = (
        chart("tpot", "TPOT against batch", "sequences", "s",
              curve("TPOT", batches, lambda b: case.step_s(b, mean)), log="x", at_x=marks),
        chart("throughput", "Throughput against batch", "sequences", "tok/s",
              curve("all sequences", batches, lambda b: b / case.step_s(b, mean)), log="x", at_x=marks))
    most = case.held(batch, prompt + output)
    bar = Bar(key="memory", title=f"Each {case.device.name}", total=case.memory_bytes,
              parts=(("weights", bare), ("KV cache", most - bare), ("workspace", ASSUMED.workspace_bytes)))
    return Result(numbers=numbers, charts=charts, bars=(bar,),
                  notes=_notes(case, most + ASSUMED.workspace_bytes))


SERVING = Lab(
    key="serving", title="Serving planner",
    lead="Whether a deployment fits, how long the first token takes, and every one after it.",
    controls=(parts.MODEL, parts.slider("prompt", "Prompt tokens", 2048, 16, 131072, unit="tokens", log=True),
              parts.slider("output", "Output tokens", 256, 1, 8192, unit="tokens", log=True), parts.BATCH,
              parts.TP, parts.WEIGHT, parts.CACHE, parts.DEVICE),
    compute=_compute)
