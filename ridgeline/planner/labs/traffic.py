"""Figures 10 and 15: throughput against goodput, and the four schedulers. Source: "The Mechanics of LLM
Inference", Metrics from first principles; The scheduling problem."""

from ridgeline.ledger import closed
from ridgeline.planner.lab import Lab, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.forms import bars, chart, curve, number, spread
from ridgeline.planner.labs.parts import Case, Values, real, slider, whole
from ridgeline.planner.labs.schedulers import SCHEDULERS, Costs, schedule
from ridgeline.workload.offered import Offered

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_PROMPTS = (512, 128, 2048, 256, 8192, 1024, 128, 4096)
_SAID = {"static": "Static: a batch runs until its longest answer is done; others hold their slots idle.",
         "continuous": "Continuous: a slot is refilled when it falls free, but a prompt stalls everybody.",
         "chunked": "Chunked: each step takes a bounded piece of a prompt, so nobody waits long for a token.",
         "disaggregated": "Disaggregated: prompts run on a device of their own, and their caches travel."}
_OUTPUTS = (500, 20, 160, 80, 60, 200, 40, 120)


def _goodput(values: Values) -> Result:
    case, batch, rate = Case.of(values), _BATCHES[whole(values, "step") - 1], real(values, "rate")
    prompt, output = whole(values, "prompt"), whole(values, "output")
    prefill, context = case.prompt_s(prompt), prompt + output / 2
    room = case.resident(prompt + output, parts.ASSUMED.workspace_bytes)

    def gap(b: float) -> float:
        """A step, and its share of the prompts that come in: b of them in `output` steps."""
        return case.step_s(b, context) + b / output * prefill

    def served(b: float) -> float:
        return b / (output * gap(b))

    def good(b: float) -> float:
        meets = gap(b) <= real(values, "tpot") / 1e3 and prefill + gap(b) <= real(values, "ttft") / 1e3
        return served(b) if meets and b <= room else 0.0

    ttft = prefill + gap(batch)
    e2e = closed.end_to_end(ttft, gap(batch), output)
    best = max(range(1, 513), key=good)
    numbers = (
        number("batch", "Batch", batch, "sequences"),
        number("tpot", "TPOT, the prompts' share included", gap(batch), "s", "step + B / N_o * prefill", "",
               "nominal"),
        number("ttft", "TTFT without a queue", ttft, "s", "prefill + the step it waits for", "", "nominal"),
        number("throughput", "Throughput", batch / gap(batch), "tok/s", "B / TPOT", "", "nominal"),
        number("served", "Requests served", served(batch), "requests/s", "B / (N_o TPOT)", "", "nominal"),
        number("goodput", "Goodput", good(batch), "requests/s", "served if targets are met and it fits"),
        number("best", "Goodput's best batch", best if good(best) else 0, "sequences"),
        number("best_goodput", "Goodput there", good(best), "requests/s", "", "", "nominal"),
        number("in_flight", "In flight at the offered rate", closed.in_flight(rate, e2e), "requests",
               "rate * E2E (Little)", f"{rate:g} * {e2e:.4g}", "nominal"),
        number("keeps_up", "This batch keeps up with it", served(batch) >= rate))
    batches = [round(b) for b in spread(1, 512)]
    charts = (
        chart("rates", "Throughput and goodput", "sequences", "requests/s", curve("served", batches, served),
              curve("in time", batches, good), log="x", at_x={"here": batch}, at_y={"offered": rate}),
        chart("tpot", "TPOT against its target", "sequences", "s", curve("TPOT", batches, gap), log="x",
              at_y={"target": real(values, "tpot") / 1e3}))
    return Result(numbers=numbers, charts=charts, num_steps=len(_BATCHES), notes=(
        f"Batch {batch}: {served(batch):.3g} requests a second, {good(batch):.3g} of them in time.",
        "All share one step, so all miss the target at once: past it throughput rises and goodput is none.",
        "A mean hides what users notice: quote percentiles, and of both phases in one run.",
        "Below the offered rate a queue grows without end, and TTFT tells of the scheduler."))


def _schedulers(values: Values) -> Result:
    case, chosen = Case.of(values), SCHEDULERS[whole(values, "step") - 1]
    slots, every, same = whole(values, "slots"), real(values, "every_ms") * 1e-3, bool(values["uniform"])
    mean = (sum(_PROMPTS) // 8, round(sum(_OUTPUTS) / 8))
    requests = [Offered(num_prompt=mean[0] if same else p, num_output=mean[1] if same else o,
                        arrived_s=i * every)
                for i, (p, o) in enumerate(zip(_PROMPTS, _OUTPUTS))]
    costs = Costs(prompt=case.prompt_s, step=case.step_s,
                  transfer=lambda n: case.sequence_bytes(n) / (real(values, "link") * 1e9))
    courses = schedule(requests, slots=slots, chunk=whole(values, "chunk"), costs=costs)
    mine, ends = courses[chosen].lives, {name: of.end_s for name, of in courses.items()}
    outputs = tuple(one.num_output for one in requests)
    numbers = (
        number("scheduler", "Scheduler", chosen),
        number("makespan", "Until all are done", ends[chosen], "s", "last token of the last"),
        number("tok_s", "Throughput", sum(outputs) / ends[chosen], "tok/s", "tokens / time"),
        number("used", "Slots in use", courses[chosen].row_s / (slots * ends[chosen]), "share",
               "slots that take part in steps, over time / (slots * time)"),
        number("static", "Slots in use, all as one static batch", closed.slot_utilisation(outputs), "share",
               "sum of outputs / (B * longest)", f"{sum(outputs)} / ({len(outputs)} * {max(outputs)})"),
        number("ttft", "Mean TTFT", sum(life.ttft_s for life in mine) / len(mine), "s"),
        number("ttft_worst", "Worst TTFT", max(life.ttft_s for life in mine), "s"),
        number("gap", "Longest wait between two tokens", max(life.gap_s for life in mine), "s"),
        number("devices", "Devices", 2 if chosen == "disaggregated" else 1))
    names = tuple(f"{i + 1}: {one.num_prompt}+{one.num_output}" for i, one in enumerate(requests))
    spent = {"waiting": [x.queued_s for x in mine], "prefill": [x.prefill_s for x in mine],
             "decode": [x.decode_s for x in mine], "slot held, doing nothing": [x.held_s for x in mine]}
    gaps = tuple(max(life.gap_s for life in of.lives) for of in courses.values())
    charts = (
        chart("lives", f"Eight requests, {chosen}", "request: tokens in + out", "s", *bars(names, spent),
              stacked=True),
        chart("gaps", "Longest wait between two tokens", "", "s", *bars(SCHEDULERS, {"longest": gaps})),
        chart("makespan", "Until all are done", "", "s", *bars(SCHEDULERS, {"time": [*ends.values()]})))
    return Result(numbers=numbers, charts=charts, num_steps=len(SCHEDULERS), notes=(
        _SAID[chosen],
        "The scheduler that serves feeds this page, in virtual time: steps by the closed forms, memory "
        "without end, no shared prefixes. Disaggregation has two devices, and an answer may wait for a slot.",
        "Equal requests show none of this: static batching looks fine and chunks look like overhead. Measure "
        "with your own lengths and arrivals, and report tails.",
        "Pages waste less than a block a sequence; 131072 tokens reserved for 40 used are 17 GB for 5 MB."))


GOODPUT = Lab(
    key="goodput", title="Throughput and goodput disagree", compute=_goodput,
    lead="The largest batch moves the most tokens and may meet nobody's target.",
    controls=(parts.stepper(len(_BATCHES)), parts.MODEL, parts.DEVICE,
              slider("prompt", "Prompt tokens", 2048, 16, 131072, unit="tokens", log=True),
              slider("output", "Output tokens", 256, 2, 8192, unit="tokens", log=True),
              slider("ttft", "TTFT target", 500.0, 10, 10000, unit="ms", log=True),
              slider("tpot", "TPOT target", 15.0, 1, 1000, unit="ms", log=True),
              slider("rate", "Offered rate", 5.0, 0.1, 1000, 0.1, unit="requests/s", log=True)))
SCHEDULING = Lab(
    key="schedulers", title="The same eight requests, four schedulers", compute=_schedulers,
    lead="Static, continuous, chunked and disaggregated: who waits, who stalls, and which slots idle.",
    controls=(parts.stepper(len(SCHEDULERS)), slider("slots", "Slots", 4, 1, 8), parts.MODEL, parts.DEVICE,
              slider("chunk", "Chunk", 512, 16, 8192, unit="tokens", log=True),
              slider("every_ms", "Time between arrivals", 0.0, 0, 1000, 1, unit="ms"),
              slider("link", "Link between devices", 50.0, 1, 1000, unit="GB/s", log=True),
              parts.Control(key="uniform", label="Equal requests", kind="toggle", default=False)))
