"""Experts read against batch. Source: "The Mechanics of LLM Inference", Distributed inference."""

from dataclasses import replace

from ridgeline.planner.lab import Lab, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.forms import chart, curve, number, spread
from ridgeline.planner.labs.parts import Case, Values, slider, whole
from ridgeline.spec.cost import expected_distinct

MIXTURES = tuple(name for name in parts.MODELS if any(
    block.kind == "moe" for layer in parts.model(name).layers for _, block in layer.blocks))


def _compute(values: Values) -> Result:
    case, batch, context = Case.of(values), whole(values, "batch"), whole(values, "context")
    rows = batch * (whole(values, "drafts") + 1)
    router, layers = max(case.routers().items(), key=lambda item: item[1])
    experts, top_k = router[:2]
    one, read, all_of_them = case.weights_read(1), case.weights_read(rows), case.exact_weights_bytes()
    distinct = expected_distinct((experts, top_k), rows)
    numbers = (
        number("rows", "Tokens in the step", rows, "tokens", "B * (drafts + 1)"),
        number("distinct", "Distinct experts read", distinct, "experts", "E (1 - (1 - k / E)^B)",
               f"{experts} (1 - (1 - {top_k} / {experts})^{rows}), in each of {layers} layers"),
        number("share", "Share of the experts", distinct / experts, "share", "distinct / E"),
        number("weights_read", "Weights read a step", read, "bytes", "shared and distinct experts", "",
               "exact"),
        number("against_one", "Against one token alone", read / one, "", "bytes / bytes of one", "", "exact"),
        number("against_all", "Against all weights", read / all_of_them, "share",
               "bytes / resident bytes", "", "exact"),
        number("step", "Step", case.decode(batch, context, rows // batch).floor_s, "s",
               "sum of lines' max(bytes, FLOPs) times", f"at a context of {context}", "exact"))
    batches = [round(b) for b in spread(1, 1024)]
    charts = (
        chart("distinct", "Experts read against tokens in a step", "tokens", "experts",
              curve("distinct", batches, lambda b: expected_distinct((experts, top_k), b)), log="x",
              at_x={"this step": rows}, at_y={"all": experts}),
        chart("bytes", "Weights read a step", "tokens", "bytes",
              curve("read", batches, lambda b: case.weights_read(int(b))), log="x",
              at_y={"all weights": all_of_them}))
    return Result(numbers=numbers, charts=charts, notes=(
        "Every choice is taken as equally likely; skewed routing reads fewer experts.",
        "The advantage in bytes goes as the batch grows; the one in FLOPs stays, but FLOPs did not bind.",
        "Verifying drafts is more tokens: speculation and experts want the same idle machine.",
        "The nominal P counts every expert: that is the memory a mixture needs, not what a step reads."))


EXPERTS = Lab(
    key="experts", title="Experts read against batch", compute=_compute,
    lead="A mixture reads few experts for one token and nearly all for a batch.",
    controls=(parts.choice("model", "Model", "mixtral-8x7b", MIXTURES), replace(parts.BATCH, default=4),
              slider("drafts", "Drafts verified", 0, 0, 8), parts.CONTEXT, parts.WEIGHT, parts.DEVICE))
