"""Figures 8, 9 and 11 to 13: the decode wall, shared weights and private caches, quantization's edits,
speculation, and tensor-parallel scaling. Source: "The Mechanics of LLM Inference", Why decode is
bandwidth-bound to Distributed inference."""

from dataclasses import replace

from ridgeline.ledger import closed
from ridgeline.ledger.layout import tensor_sizes
from ridgeline.planner.lab import Lab, Result, Series
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.forms import bars, both, chart, count, curve, gb, number, spread
from ridgeline.planner.labs.parts import ASSUMED, Case, Values, whole

_SIZES = (1e9, 3e9, 8e9, 13e9, 34e9, 70e9, 405e9)
_READING = (5.0, 15.0)  # tokens/s: about 250 words a minute, and three times as fast; assumed
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_EDITS = (("bf16", "bf16"), ("int4", "bf16"), ("int8", "bf16"), ("fp8", "bf16"), ("bf16", "fp8"),
          ("int4", "fp8"), ("fp8", "fp8"))  # (weights, cache)
_WAYS = (1, 2, 4, 8, 16)
_DRAFTS = 8


def _wall(values: Values) -> Result:
    case, context, claimed = Case.of(values), whole(values, "context"), parts.real(values, "claim")
    beta, params = case.device.bytes_per_s, _SIZES[whole(values, "step") - 1]
    step, empty, flops = case.step_s(1, context), case.step_s(1, 0), closed.decode_flops(case.shape, 0)
    implied = claimed * case.weight_bytes
    numbers = (
        number("size_step", f"Step of {params / 1e9:g}e9 parameters", case.s_w * params / beta, "s",
               "s_w P / bandwidth", f"{case.s_w:g} * {params:g} / {beta:.4g}", "nominal"),
        number("size_tok_s", "Its ceiling, one sequence", beta / (case.s_w * params), "tok/s",
               "bandwidth / (s_w P)", "", "nominal"),
        *both("empty_step", f"Step of {case.model}, empty cache", (empty, case.decode(1, 1).floor_s), "s",
              ("s_w P / bandwidth", "sum of lines' max(bytes, FLOPs) times"),
              f"{gb(case.weight_bytes)} / {beta / 1e12:.4g} TB/s", "what is really read"),
        number("empty_tok_s", "Its ceiling", 1 / empty, "tok/s", "1 / step", "", "nominal"),
        number("peak_share", "Share of the peak", flops / empty / case.rate, "share", "FLOPs / step / peak",
               f"{flops:.3g} / {empty:.3g} / {case.rate:.3g}", "nominal"),
        number("step", "Step at this context", step, "s", "(s_w P + KV) / bandwidth",
               f"({gb(case.weight_bytes)} + {gb(case.sequence_bytes(context))}) / {beta / 1e12:.4g} TB/s",
               "nominal"),
        number("slower", "Slower than with an empty cache", step / empty, "", "step / step", "", "nominal"),
        number("implied", "Bandwidth that the quoted rate implies", implied, "bytes/s",
               "quoted tok/s * weights", f"{claimed:g} * {gb(case.weight_bytes)}", "nominal"),
        number("implied_share", "Of the device's", implied / beta, "share", "implied / bandwidth"))
    sizes, lengths = spread(0.5e9, 500e9), spread(512, 131072)
    kinds = {name: replace(case, weights=name).s_w for name in ("bf16", "fp8", "int4")}
    charts = (
        chart("wall", "Ceiling of one sequence", "parameters", "tok/s",
              Series(name="reading speed", x=sizes, y=(_READING[0],) * len(sizes), kind="band",
                     upper=(_READING[1],) * len(sizes)),
              *(Series(name=name, x=sizes, y=tuple(beta / (size * p) for p in sizes))
                for name, size in kinds.items()), log="xy", at_x={"here": params}),
        chart("conversation", f"Step of {case.model} as a conversation grows", "context, tokens", "s",
              curve("TPOT", lengths, lambda n: case.step_s(1, n)), log="x", at_x={"here": context}))
    return Result(numbers=numbers, charts=charts, num_steps=len(_SIZES), notes=(
        f"{params / 1e9:g}e9 parameters in {case.weights}: {beta / (case.s_w * params):.3g} tokens a second "
        f"at best; a reader follows {_READING[0]:g} to {_READING[1]:g} (assumed).",
        "Everything in this ceiling is known before a line of code is written; nobody beats it.",
        "Fewer FLOPs change nothing while the weights must still be read.",
        "The wall moves as a conversation grows: that is the cache, not a fault.",
        "Where a quoted rate implies more than the device's bandwidth, the weights are narrower than said, "
        "the rate is of a whole batch, or there are several devices."))


def _bending(values: Values) -> Result:
    case, context = Case.of(values), whole(values, "context")
    batch, sequence, shape = _BATCHES[whole(values, "step") - 1], case.sequence_bytes(context), case.shape

    def intensity(b: float) -> float:
        return closed.intensity(shape, b, context, case.s_w, case.s_c)

    ceiling, cross = closed.intensity_ceiling(shape, context, case.s_c), case.weight_bytes / sequence
    numbers = (
        number("batch", "Batch", batch, "sequences"),
        number("weights", "Read once for all", case.weight_bytes, "bytes", "s_w P", "", "nominal"),
        number("caches", "Read once for each", batch * sequence, "bytes", "B * KV",
               f"{batch} * {gb(sequence)}", "nominal"),
        number("intensity", "Intensity", intensity(batch), "FLOP/B", "B (2P + 4LNd) / (s_w P + B KV)", "",
               "nominal"),
        number("weights_only", "Without the caches it were", 2 * batch / case.s_w, "FLOP/B", "2B / s_w", "",
               "nominal"),
        number("ceiling", "Ceiling", ceiling, "FLOP/B", "2P / KV + 2g / s_c", "", "nominal"),
        number("ceiling_share", "Ceiling over the ridge", ceiling / case.balance, "share", "I / I*"),
        number("limit", "Ceiling of the longest contexts",
               closed.decode_attention_intensity(shape.group, case.s_c), "FLOP/B", "2g / s_c"),
        number("b_cross", "B_cross", cross, "sequences", "weights / KV", "", "nominal"))
    charts = (
        chart("bytes", "Bytes of a step", "sequences", "bytes",
              *bars([str(b) for b in _BATCHES], {"weights": [case.weight_bytes] * len(_BATCHES),
                                                 "caches": [b * sequence for b in _BATCHES]}), stacked=True),
        chart("intensity", "Intensity bends", "sequences", "FLOP/B",
              curve("with caches", spread(1, 1024), intensity),
              curve("weights alone", spread(1, 1024), lambda b: 2 * b / case.s_w), log="xy",
              at_x={"here": batch, "B_cross": cross}, at_y={"ceiling": ceiling, "ridge": case.balance}))
    return Result(numbers=numbers, charts=charts, num_steps=len(_BATCHES), notes=(
        f"At batch {batch} the caches are {batch * sequence / case.weight_bytes:.3g} times the weights, and "
        f"the intensity is {intensity(batch) / ceiling:.0%} of its ceiling.",
        "No batch makes a long context's decode compute-bound: caches grow on both sides of the fraction.",
        "B* is derived from the weights alone: quote it as a bound, not as a target."))


def _quantization(values: Values) -> Result:
    prompt, context, batch = (whole(values, key) for key in ("prompt", "context", "batch"))
    cases = [replace(Case.of(values), weights=weights, cache=kept) for weights, kept in _EDITS]
    names = tuple(f"{weights} / {kept}" for weights, kept in _EDITS)
    at, space = whole(values, "step") - 1, ASSUMED.workspace_bytes
    case, plain = cases[at], cases[0]
    decode, prefill = case.step_s(batch, context), case.prompt_s(prompt)
    numbers = (
        number("edit", "Weights / cache", names[at]),
        *both("decode", "Decode step", (decode, case.decode(batch, context).floor_s), "s",
              ("(s_w P + B KV) / bandwidth", "sum of lines' max(bytes, FLOPs) times"), "",
              "scales and tables as held"),
        number("decode_gain", "Decode, times as fast", plain.step_s(batch, context) / decode),
        number("prefill", "Prefill", prefill, "s", "(2PN + 2LN^2d) / (peak * share) [+ unpacking]", "",
               "nominal"),
        number("prefill_gain", "Prefill, times as fast", plain.prompt_s(prompt) / prefill),
        number("residents", "Resident sequences", case.resident(context, space), "sequences",
               "floor((memory - weights - workspace) / KV)", "", "nominal"),
        number("limit", "Intensity at the longest contexts",
               closed.decode_attention_intensity(case.shape.group, case.s_c), "FLOP/B", "2g / s_c"),
        number("b_star", "B*", closed.ridge_batch(case.balance, case.s_w), "sequences", "s_w I* / 2"))
    room = max(plain.resident(context, space), 1)
    gains = {"decode": [plain.step_s(batch, context) / x.step_s(batch, context) for x in cases],
             "prefill": [plain.prompt_s(prompt) / x.prompt_s(prompt) for x in cases],
             "capacity": [x.resident(context, space) / room for x in cases]}
    charts = (chart("gains", "Against bf16", "weights / cache", "times",
                    *bars(names, {name: y[:at + 1] for name, y in gains.items()})),)
    return Result(numbers=numbers, charts=charts, num_steps=len(_EDITS), notes=(
        f"{names[at]}: decode {gains['decode'][at]:.3g}, prefill {gains['prefill'][at]:.3g} and capacity "
        f"{gains['capacity'][at]:.3g} times bf16's.",
        "Decode follows the weights' bytes, prefill the arithmetic's format, capacity the cache's bytes.",
        "Weight-only formats do not speed up a prompt: unpacking them is added to what binds already, "
        "taken as 2 operations a weight for every 256 rows (assumed).",
        "fp8 and int8 weights are multiplied as they are where the device can; else they are unpacked too.",
        "Nothing here says whether the quantized model is as good: measure quality."))


def _speculation(values: Values) -> Result:
    case, drafts, batch = Case.of(values), whole(values, "step"), whole(values, "batch")
    alpha, cost = parts.real(values, "alpha"), parts.real(values, "draft_cost")
    context = whole(values, "context")
    star, expected = closed.ridge_batch(case.balance, case.s_w), closed.expected_tokens(alpha, drafts)

    def verify_s(b: float, positions: int) -> float:
        """Linear layers, then attention: each free to verify more only below the ridge."""
        linear = 2 * b * positions * case.shape.num_params / case.rate
        attention = b * positions * closed.decode_flops(case.shape, context) / case.rate - linear
        return (max(case.weight_bytes / case.device.bytes_per_s, linear)
                + max(b * case.sequence_bytes(context) / case.device.bytes_per_s, attention))

    def gain(b: float) -> float:
        return expected / (verify_s(b, drafts + 1) / verify_s(b, 1) + drafts * cost)

    numbers = (
        number("tokens", "Tokens a verification", expected, "tokens",
               "(1 - a^(k+1)) / (1 - a)", f"(1 - {alpha:g}^{drafts + 1}) / (1 - {alpha:g})"),
        number("gain", "Speed-up on an idle machine", closed.speculation_gain(alpha, drafts, cost), "",
               "E[tokens] / (1 + k c)", f"{expected:.3g} / (1 + {drafts} * {cost:g})"),
        number("gain_at_batch", "Speed-up at this batch", gain(batch), "",
               "E[tokens] / (verification / step + k c)", "", "nominal"),
        number("verify", "Verification", verify_s(batch, drafts + 1), "s",
               "max(weights, linear FLOPs) + max(KV, attention FLOPs) times", "", "nominal"),
        number("rows", "Rows in a product", batch * (drafts + 1), "rows", "B (k + 1)"),
        number("closing", "Largest batch below the ridge", int(star // (drafts + 1)), "sequences",
               "floor(B* / (k + 1))", f"{star:.4g} / {drafts + 1}"),
        number("best", "Best number of drafts, idle machine", closed.best_drafts(alpha, cost), "tokens"))
    rates = tuple(i / 20 for i in range(21))
    charts = (
        chart("tokens", "Tokens a verification", "acceptance", "tokens",
              *(Series(name=count(k, "draft"), x=rates, y=tuple(closed.expected_tokens(a, k) for a in rates))
                for k in sorted({1, 2, 4, 8, drafts})), at_x={"here": alpha}),
        chart("closing", "Speed-up against batch", "sequences", "times",
              curve("speed-up", spread(1, 1024), gain), log="x", at_x={"ridge": star / (drafts + 1)},
              at_y={"no gain": 1.0}))
    return Result(numbers=numbers, charts=charts, num_steps=_DRAFTS, notes=(
        f"{count(drafts, 'draft')} at batch {batch}: {batch * (drafts + 1)} rows, "
        f"{'past' if batch * (drafts + 1) > star else 'below'} the ridge at {star:.0f}.",
        "The weights and the cache are read once, however many positions are verified.",
        "Past the ridge every rejected draft costs time: what speculation spends has been sold by then.",
        "Acceptance differs by text: code accepts well, open-ended prose badly.",
        "A draft need not be a model: heads on the target, or looking up what the prompt says already."))


def _scaling(values: Values) -> Result:
    ways, batch, context = _WAYS[whole(values, "step") - 1], whole(values, "batch"), whole(values, "context")
    latency = parts.real(values, "collective_us") * 1e-6
    one = Case.of(values)
    case = replace(one, ways=ways)

    def step(n: int) -> float:
        return closed.step_seconds(one.shape, batch, context, one.s_w, one.s_c, one.device.bytes_per_s, n,
                                   latency)

    num, works = closed.num_collectives(one.shape, ways), tensor_sizes(parts.model(one.model))
    sizes = ", ".join(map(str, works))
    numbers = (
        number("ways", "Devices", ways),
        number("divides", "They divide the model's heads and widths", ways in works, "", "sizes that work",
               sizes),
        number("step", "Step", step(ways), "s", "(weights / n + B KV / min(n, n_kv)) / bandwidth + 2L t",
               f"{gb(case.held(batch, context))} each, + {num * latency:.3g} s", "nominal"),
        number("speedup", "Speed-up", step(1) / step(ways), "", "step on one / step", "", "nominal"),
        number("collectives", "Collectives a step", num, "", "2L"),
        number("collectives_share", "Their share", num * latency / step(ways), "share", "2L t / step"),
        number("payload", "Payload of one", closed.payload_bytes(one.shape, batch), "bytes", "B d_model 2",
               f"{batch} * {one.shape.hidden_size} * 2"),
        number("copies", "Devices that hold one KV head", closed.kv_copies(one.shape, ways), "", "n / n_kv"),
        number("held", "Held by each device", case.held(batch, context), "bytes",
               "weights / n + B KV / min(n, n_kv)", "", "nominal"))
    charts = (chart("scaling", "Speed-up against devices", "devices", "times",
                    curve("with collectives", _WAYS, lambda n: step(1) / step(int(n))),
                    curve("ideal", _WAYS, lambda n: n),
                    curve("sizes that work", [n for n in works if n <= _WAYS[-1]], lambda n: step(1)
                          / step(int(n)), "points"), log="xy", at_x={"here": ways}),)
    cannot = [] if ways in works else [
        f"{ways} devices cannot share this model: sizes that divide its heads and widths are {sizes}. The "
        "numbers are those of the closed form, which does not ask."]
    return Result(numbers=numbers, charts=charts, num_steps=len(_WAYS), notes=(
        *cannot,
        "One device: all bytes are its own, and no collective is needed." if ways == 1 else
        f"{ways} devices: {step(1) / step(ways):.3g} times as fast, not {ways}; the rest is collectives"
        f"{' and copies of the cache' if closed.kv_copies(one.shape, ways) > 1 else ''}.",
        "The bytes divide; the latency of the collectives does not, and is the least certain number here.",
        f"Beyond {one.shape.num_kv_heads} devices the cache is copied, not cut: it takes no less room.",
        "A payload this small is all latency: across machines, where that is higher, decode seldom gains."))


WALL = Lab(
    key="wall", title="The decode wall", compute=_wall,
    lead="The token rate that the bandwidth allows, over model sizes and as a conversation grows.",
    controls=(parts.stepper(len(_SIZES)), parts.MODEL, parts.CONTEXT, parts.WEIGHT, parts.CACHE,
              parts.DEVICE, parts.slider("claim", "A quoted rate", 300.0, 1, 10000, unit="tok/s", log=True)))
BENDING = Lab(
    key="bending", title="Shared weights, private caches", compute=_bending,
    lead="Weights are read once for all, caches once for each: why intensity bends with the batch.",
    controls=(parts.stepper(len(_BATCHES)), parts.MODEL, parts.CONTEXT, parts.CACHE, parts.DEVICE))
QUANTIZATION = Lab(
    key="quantization", title="Three edits of quantization", compute=_quantization,
    lead="Three lines of the ledger, and what an edit of each changes.",
    controls=(parts.stepper(len(_EDITS)), parts.MODEL, replace(parts.BATCH, default=1), parts.CONTEXT,
              parts.slider("prompt", "Prompt tokens", 8192, 16, 131072, unit="tokens", log=True),
              parts.DEVICE))
SPECULATION = Lab(
    key="speculation", title="Speculation and its closing point", compute=_speculation,
    lead="Tokens bought with idle arithmetic, until a batch has sold it.",
    controls=(replace(parts.stepper(_DRAFTS), label="Drafts", default=4),
              parts.slider("alpha", "Acceptance", 0.8, 0, 1, 0.01),
              parts.slider("draft_cost", "A draft's cost", 0.05, 0, 1, 0.01, unit="target steps"),
              replace(parts.BATCH, default=8), parts.MODEL, replace(parts.CONTEXT, default=1024),
              parts.WEIGHT, parts.DEVICE))
SCALING = Lab(
    key="tensor-parallel", title="Tensor-parallel scaling", compute=_scaling,
    lead="More bandwidth, minus the collectives.",
    controls=(parts.stepper(len(_WAYS)), parts.MODEL, replace(parts.BATCH, default=1),
              replace(parts.CONTEXT, default=0, low=0, log=False), parts.WEIGHT, parts.DEVICE,
              parts.slider("collective_us", "Latency of a collective", 6.0, 0, 100, 0.5, unit="µs")))
