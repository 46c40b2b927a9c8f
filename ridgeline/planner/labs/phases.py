"""Figures 1 to 4: the serial chain, flat against growing steps, the collapsing M dimension, and the
redundancy behind the cache. Source: "The Mechanics of LLM Inference", its sections 1 to 4."""

from ridgeline.ledger import closed, training
from ridgeline.planner.lab import Lab, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.forms import bars, chart, count, curve, gb, number, spread
from ridgeline.planner.labs.parts import Case, Values, slider, whole

_TOKENS = slider("output", "Tokens generated", 500, 8, 8192, unit="tokens", log=True)
_PROMPT = slider("prompt", "Prompt tokens", 1000, 16, 32768, unit="tokens", log=True)
_CHAIN, _STEPS, _REDUNDANT = 8, 7, 10
_ROWS = (8192, 2048, 512, 128, 32, 8, 2, 1)


def _chain(values: Values) -> Result:
    case, step, output = Case.of(values), whole(values, "step"), whole(values, "output")
    one_s, few_s = case.step_s(1, 0), max(case.prompt_s(_CHAIN), case.step_s(1, 0))
    at_once_s = max(case.prompt_s(output), one_s)
    tokens = tuple(range(1, step + 1))
    numbers = (
        number("passes", "Dependent passes so far", step, "", "one a token"),
        number("elapsed", "Time so far", step * one_s, "s", "tokens * step floor", f"{step} * {one_s:.4g}",
               "nominal"),
        number("generate", "To generate all", output * one_s, "s", "tokens * step floor",
               f"{output} * {one_s:.4g}", "nominal"),
        number("train", "To read the same text, known beforehand, in one pass", at_once_s, "s",
               "max((2PN + 2LN^2d) / (peak * share), weights / bandwidth)", "", "nominal"),
        number("ratio", "Chain over one pass", output * one_s / at_once_s, "", "time / time"))
    charts = (chart("timeline", "When each token is known", "token", "s",
                    *bars(tokens, {"generated": [token * one_s for token in tokens],
                                   "known text, one pass": [few_s] * step})),)
    return Result(numbers=numbers, charts=charts, num_steps=_CHAIN, notes=(
        f"Token {step} needs token {step - 1}: no device, kernel or scheduler runs the two passes at once."
        if step > 1 else "The first token needs the prompt alone.",
        "In training the text is known, so every position is predicted in one pass.",
        "The chain binds the tokens of one sequence. Sequences do not wait for one another: hence batching. "
        "Guessing tokens and verifying them shortens the chain by luck and does not break it."))


def _growing(values: Values) -> Result:
    case, step = Case.of(values), whole(values, "step")
    prompt, output = whole(values, "prompt"), whole(values, "output")
    at = [0, *(round(output * i / (_STEPS - 1)) for i in range(1, _STEPS))]  # tokens generated at each place
    names = ("prefill", *(f"token {n}" for n in at[1:]))[:step]
    seconds = (case.prompt_s(prompt), *(case.step_s(1, prompt + n) for n in at[1:]))[:step]
    state = tuple(case.sequence_bytes(prompt + n) for n in at[:step])
    held, bare = training.training_bytes(case.shape.num_params), case.params_without_tables()
    numbers = (
        number("step_s", "This step", seconds[-1], "s", "prefill at its share of the peak; a decode at the "
               "bandwidth", names[-1], "nominal"),
        number("state", "State of the request", state[-1], "bytes", "N * KV per token",
               f"{prompt + at[step - 1]} tokens", "nominal"),
        number("training_state", "State of a training run, every step the same", held.low, "bytes",
               "weights, masters, gradients, moments, activations", f"{gb(held.low)} to {gb(held.high)}"),
        number("quadratic", "Prompt whose attention costs what its linear layers do",
               closed.quadratic_tokens(case.shape.num_params, case.shape), "tokens", "P / (L d)",
               f"{case.shape.num_params:.4g} / ({case.shape.num_layers} * {case.shape.width:g})", "nominal"),
        number("quadratic_bare", "The same, the tables of tokens not counted",
               closed.quadratic_tokens(bare, case.shape), "tokens", "P / (L d)",
               f"{bare:.4g} / ({case.shape.num_layers} * {case.shape.width:g})"),
        number("flops_ratio", "FLOPs a parameter and token, training over inference",
               training.TRAINING_FLOPS / training.INFERENCE_FLOPS, "", "6 / 2"))
    trained_s = training.TRAINING_FLOPS / training.INFERENCE_FLOPS * case.prompt_s(prompt + output)
    charts = (
        chart("steps", "Time of a step", "", "s", *bars(names, {
            "request": seconds, "training on the same text": [trained_s] * step})),
        chart("state", "State that a step leaves", "", "bytes", *bars(names, {
            "request's cache": state, "training run": [held.low] * step}), log="y"))
    return Result(numbers=numbers, charts=charts, num_steps=_STEPS, notes=(
        f"{names[-1].capitalize()}: {seconds[-1] * 1e3:.3g} ms, with {gb(state[-1])} of state behind it.",
        "One wide step that computes, then a tail of narrow ones that read; and what they read grows.",
        "A training step has the same time and the same memory on every day of the run.",
        "The two phases disturb each other in one batch: both want the memory's bandwidth."))


def _dimension(values: Values) -> Result:
    device, element = parts.hardware(parts.text(values, "device")), parts.text(values, "element")
    step, width, out = (whole(values, key) for key in ("step", "d", "out"))
    size, peak = {"bf16": (2, device.peak_rate), "fp8": (1, device.flops_per_s.get(
        "float8_e4m3fn", device.peak_rate))}[element]

    def reached(intensity: float) -> float:
        return min(peak, intensity * device.bytes_per_s)

    points = [closed.linear_intensity(rows, width, out, size) for rows in _ROWS]
    rows, now = _ROWS[step - 1], points[step - 1]
    ridge = peak / device.bytes_per_s
    numbers = (
        number("rows", "Rows (M)", rows),
        number("intensity", "Intensity", now, "FLOP/B", "2NDF / (s (ND + DF + NF))",
               f"2 * {rows} * {width} * {out} / "
               f"({size:g} ({rows} * {width} + {width} * {out} + {rows} * {out}))"),
        number("attention", "Attention of as many queries over 8192 keys, MHA",
               closed.attention_intensity(_ROWS[0], rows), "FLOP/B", "ST / (S + T)",
               f"{_ROWS[0]} * {rows} / ({_ROWS[0]} + {rows})"),
        number("ridge_share", "Share of the ridge", now / ridge, "share", "I / I*",
               f"{now:.4g} / {ridge:.4g}"),
        number("rate", "Arithmetic within reach", reached(now), "FLOP/s", "min(peak, I * bandwidth)"),
        number("peak_share", "Share of the peak", reached(now) / peak, "share", "rate / peak"),
        number("time", "Floor of this product", 2.0 * rows * width * out / reached(now), "s", "2NDF / rate"),
        number("bound", "Bound by", "compute" if now >= ridge else "memory"))
    charts = (chart("roofline", "Roofline", "FLOP/B", "FLOP/s",
                    curve("roof", spread(min(points) / 2, 8192), reached),
                    curve("rows 8192 to here", points[:step], reached, "points"), log="xy",
                    at_x={"ridge": ridge}),)
    return Result(numbers=numbers, charts=charts, num_steps=len(_ROWS), notes=(
        f"{count(rows, 'row')}: {now:.4g} FLOP for each byte, against {ridge:.0f} at the ridge.",
        "The same weights are read whole for 8192 rows and for one: the smallest dimension rules.",
        "Decode is not slow because its kernels are small: with free launches it would stand here too.",
        "Bytes are those of one product that must cross the memory: input, matrix, output."))


def _redundancy(values: Values) -> Result:
    case, step = Case.of(values), whole(values, "step")
    prompt, output = whole(values, "prompt"), whole(values, "output")
    done, params = output * step / _REDUNDANT, case.shape.num_params
    without, cached = closed.uncached_flops(params, prompt, done), closed.cached_flops(params, prompt, done)
    attention = 4 * case.shape.num_layers * case.shape.width * (prompt * done + done**2 / 2)
    again = done * prompt + done**2 / 2 - (prompt + done)
    numbers = (
        number("tokens", "Tokens generated", done, "tokens"),
        number("without", "Linear FLOPs without a cache", without, "FLOP", "2P (N_o N_p + N_o^2 / 2)", "",
               "nominal"),
        number("with", "Linear FLOPs with one", cached, "FLOP", "2P (N_p + N_o)", "", "nominal"),
        number("ratio", "Ratio", without / cached, "", "FLOPs / FLOPs", f"{without:.3g} / {cached:.3g}",
               "nominal"),
        number("again", "Keys and values computed again, in each layer", max(again, 0.0), "",
               "N_o N_p + N_o^2 / 2 - (N_p + N_o)"),
        number("attention", "Attention that stays with one", attention, "FLOP",
               "4Ld (N_o N_p + N_o^2 / 2)", "", "nominal"))
    grid = [output * i / 20 for i in range(1, 21)]
    charts = (chart("flops", "Linear FLOPs spent", "tokens generated", "FLOP",
                    curve("without a cache", grid, lambda n: closed.uncached_flops(params, prompt, n)),
                    curve("with one", grid, lambda n: closed.cached_flops(params, prompt, n)), log="y",
                    at_x={"here": done}),)
    return Result(numbers=numbers, charts=charts, num_steps=_REDUNDANT, notes=(
        f"After {done:g} tokens a machine without a cache has spent {without / cached:.3g} times the FLOPs.",
        "A causal mask keeps every earlier position as it was: its keys and values come out the same bit for "
        "bit, so keeping them is exact.",
        "The cache removes the recomputation and not the attention: a query still meets every cached key.",
        "The ratio grows without bound with the answer: one side is quadratic."))


PHASES: tuple[Lab, ...] = (
    Lab(key="chain", title="The chain you cannot break", compute=_chain,
        lead="Each token waits for the one before it; training knows them all.",
        controls=(parts.stepper(_CHAIN), parts.MODEL, _TOKENS, parts.WEIGHT, parts.DEVICE)),
    Lab(key="growing", title="A flat step against a growing one", compute=_growing,
        lead="Training repeats one step; a request has one wide step and a tail that grows.",
        controls=(parts.stepper(_STEPS), parts.MODEL, _PROMPT, _TOKENS, parts.CACHE, parts.DEVICE)),
    Lab(key="m-dimension", title="The M dimension collapses", compute=_dimension,
        lead="One matrix, from a prompt's thousands of rows to the single row of a decode.",
        controls=(parts.stepper(len(_ROWS)), slider("d", "Input width", 4096, 256, 32768, 256),
                  slider("out", "Output width", 4096, 256, 65536, 256),
                  parts.choice("element", "Precision", "bf16", ("bf16", "fp8")), parts.DEVICE)),
    Lab(key="redundancy", title="The redundancy behind the cache", compute=_redundancy,
        lead="What is computed again and again where keys and values are not kept.",
        controls=(parts.stepper(_REDUNDANT), parts.MODEL, _PROMPT, _TOKENS)))
