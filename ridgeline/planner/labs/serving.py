"""Lab 2, the serving planner. Source: "The Mechanics of LLM Inference", The inference memory ledger."""

from ridgeline.ledger import closed
from ridgeline.planner.lab import Lab, Number, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.forms import both, chart, curve, gb, number, spread
from ridgeline.planner.labs.parts import ASSUMED, WORKSPACE, Case, Values, whole


def _notes(case: Case, needed: float) -> tuple[str, ...]:
    notes = [
        "Times are floors of a perfect engine: real ones land 20 to 50% above the bandwidth floor. The "
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


def _numbers(case: Case, prompt: int, output: int, batch: int) -> tuple[Number, ...]:
    """The source's eight, each with its exact twin, then what stands behind them."""
    mean, most = prompt + output / 2, prompt + output
    ttft, tpot = case.prompt_s(prompt), case.step_s(batch, mean)
    first, step = case.prefill(prompt), case.decode(batch, round(mean))
    held, bare, needed = case.held(batch, mean), case.held(0, mean), case.held(batch, most)
    flops, moved, space = batch * closed.decode_flops(case.shape, mean), step.total("moved_bytes"), WORKSPACE
    lines = "sum of lines' max(bytes / bandwidth, FLOPs / peak), + bytes sent / link"
    here = f"a context of {mean:g}"
    intensity = flops / closed.step_bytes(case.shape, batch, mean, case.s_w, case.s_c)
    return (
        number("fits", "Fits?", needed + space <= case.memory_bytes, "",
               "weights / n + B * KV(prompt + output) / min(n, n_kv) + workspace <= memory",
               f"{gb(bare)} + {gb(needed - bare)} + {gb(space)} <= {gb(case.memory_bytes)}"),
        *both("ttft", "TTFT, one prompt", (ttft, first.floor_s), "s",
              ("(2PN + 2LN^2d) / (n * peak * share) [+ unpacking] + collectives", lines),
              f"{closed.prefill_flops(case.shape, prompt):.4g} / ({case.ways} * {case.rate:.4g} * "
              f"{ASSUMED.prefill:g})", "floor at the whole dense peak"),
        *both("tpot", "TPOT", (tpot, step.floor_s), "s",
              ("(weights + B * KV) / (n * bandwidth) + 2L * collective", lines),
              f"{held:.4g} B / {case.device.bytes_per_s:.4g} B/s + {case.collectives_s:.3g} s, at {here}",
              "floor of what is really read and computed"),
        *both("e2e", "E2E latency", (closed.end_to_end(ttft, tpot, output),
                                     closed.end_to_end(first.floor_s, step.floor_s, output)), "s",
              ("TTFT + (N_o - 1) * TPOT",) * 2, f"{ttft:.4g} s + {output - 1} * {tpot:.4g} s", "of floors"),
        *both("output_tok_s", "Output tok/s, all sequences", (batch / tpot, batch / step.floor_s), "tok/s",
              ("B / TPOT",) * 2, f"{batch} / {tpot:.4g} s", "at the floor"),
        *both("user_tok_s", "Per-user tok/s", (1 / tpot, 1 / step.floor_s), "tok/s", ("1 / TPOT",) * 2,
              f"1 / {tpot:.4g} s", "at the floor"),
        *both("kv_share", "KV share of step bytes", ((held - bare) / held, step.total("cache_bytes") / moved),
              "share", ("KV / (weights + KV), of one device", "bytes of the cache / all bytes that move"),
              f"{gb(held - bare)} / {gb(held)}", "of all bytes that move"),
        *both("intensity", "Decode intensity", (intensity, step.total("flops") / moved), "FLOP/B",
              ("B (2P + 4LNd) / (weights + B KV)", "FLOPs / all bytes that move"),
              f"{flops:.4g} / bytes at {here}; the ridge is at {case.balance:.0f}", "of all bytes that move"),
        number("needed", "Needed on each device", needed + space, "bytes",
               "weights / n + B * KV(prompt + output) / min(n, n_kv) + workspace",
               f"{gb(bare)} + {gb(needed - bare)} + {gb(space)}"),
        number("ttft_batch", "TTFT, the last of a batch that arrives at once", batch * ttft, "s", "B * TTFT",
               f"{batch} * {ttft:.4g} s", "nominal"),
        number("ttft_estimate", "TTFT, estimate", first.estimate_s, "s",
               "the floor's lines at assumed shares of bandwidth and peak", "", "exact"),
        number("tpot_estimate", "TPOT, estimate", step.estimate_s, "s",
               "the floor's lines at assumed shares of bandwidth and peak, and the collectives' latency",
               f"{ASSUMED.bandwidth:.0%} and {ASSUMED.prefill:.0%}, {case.collectives_s:.3g} s", "exact"))


def _compute(values: Values) -> Result:
    case = Case.of(values)
    prompt, output, batch = (whole(values, key) for key in ("prompt", "output", "batch"))
    mean, most = prompt + output / 2, prompt + output
    batches = spread(1, 1024)
    marks = {"this batch": batch, "memory is full": case.resident(most, WORKSPACE)}
    charts = (
        chart("tpot", "TPOT against batch", "sequences", "s",
              curve("TPOT", batches, lambda b: case.step_s(b, mean)), log="x", at_x=marks),
        chart("throughput", "Throughput against batch", "sequences", "tok/s",
              curve("all sequences", batches, lambda b: b / case.step_s(b, mean)), log="x", at_x=marks))
    return Result(numbers=_numbers(case, prompt, output, batch), charts=charts,
                  bars=(case.memory(f"Each {case.device.name}", batch, most),),
                  notes=_notes(case, case.held(batch, most) + WORKSPACE))


SERVING = Lab(
    key="serving", title="Serving planner",
    lead="Whether a deployment fits, how long the first token takes, and every one after it.",
    controls=(parts.MODEL, parts.slider("prompt", "Prompt tokens", 2048, 16, 131072, unit="tokens", log=True),
              parts.slider("output", "Output tokens", 256, 1, 8192, unit="tokens", log=True), parts.BATCH,
              parts.TP, parts.WEIGHT, parts.CACHE, parts.DEVICE),
    compute=_compute)
