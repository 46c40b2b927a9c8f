"""Two loads that show why schedulers differ: eight requests that can be followed by eye, and the conclusions
that a load of equal requests turns around.

The eight have prompts of 128 to 8,192 tokens and outputs of 20 to 500, 1,180 in all: a static batch of them
uses 29.5 % of its slots. The four conclusions are those of "The Mechanics of LLM Inference", The scheduling
problem: each seems true while all requests are equal and start and end together.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean

from ridgeline.sim.node import Machine, Serving
from ridgeline.sim.outcome import Outcome
from ridgeline.workload.offered import Offered, Workload

EIGHT_ROWS, EIGHT_STEP_TOKENS = 8, 16_384  # no prompt is cut unless a policy does
EIGHT_POLICIES = ("static", "fcfs", "chunked:512")
UNIFORM_ROWS, UNIFORM_REQUESTS = 16, 128
_LATE_S = 0.25  # when the long prompt comes: the others decode by then
_EIGHT = ((0.0, 128, 500), (0.0, 512, 60), (0.0, 256, 230), (0.0, 1024, 40), (0.0, 384, 150), (0.0, 2048, 20),
          (0.0, 640, 80), (_LATE_S, 8192, 100))

Run = Callable[[Machine, Serving, Workload], Outcome]


def eight_requests(policy: str) -> Workload:
    """The eight as a policy meets them: a static batch is begun when the last of it has come."""
    collects = policy == "static"
    return Workload(about=f"eight requests, one of 8,192 prompt tokens after {_LATE_S:g} s", requests=tuple(
        Offered(arrived_s=_LATE_S if collects else at, num_prompt=prompt, num_output=output)
        for at, prompt, output in sorted(_EIGHT)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a load of equal requests seems to say, and the figure that says otherwise under real lengths."""

    claim: str
    measure: str
    uniform: float
    real: float


def reversed_conclusions(machine: Machine, real: Workload, run: Run) -> tuple[Conclusion, ...]:
    """Both loads keep as many clients busy as the machine has rows, and the real one's means are the uniform
    one's lengths. A step holds all their prompts at once, so that equal requests run in step."""
    clients, requests = machine.capacity.num_rows, real.requests
    prompt = round(mean(one.num_prompt for one in requests))
    output = round(mean(one.num_output for one in requests))
    each = max(one.num_prompt + one.num_output for one in requests)
    loads = {
        "uniform": (tuple(replace(one, num_prompt=prompt, num_output=output, prefix=()) for one in requests),
                    prompt + output),
        "real": (tuple(requests), each)}
    whole = replace(machine, capacity=replace(machine.capacity, max_step_tokens=max(clients * prompt, each)))
    found: dict[str, dict[str, Outcome]] = {}
    for name, (offered, longest) in loads.items():
        load = Workload(requests=offered, about=name, num_at_a_time=clients)
        found[name] = {policy: run(whole, Serving(policy=policy), load)
                       for policy in ("static", "fcfs", "chunked:512")}
        crowd, tight = replace(load, num_at_a_time=4 * clients), _tight(whole, prompt + output)
        for kv in ("paged", "contiguous"):
            serving = Serving(policy="fcfs", kv=kv, reserve_tokens=longest)
            found[name][kv] = run(tight, serving, crowd)

    def conclude(claim: str, measure: str, value: Callable[[dict[str, Outcome]], float]) -> Conclusion:
        return Conclusion(claim=claim, measure=measure, uniform=value(found["uniform"]),
                          real=value(found["real"]))

    return (
        conclude("static batching looks fine", "share of its slots that work",
                 lambda of: of["static"].slot_utilisation),
        conclude("continuous batching looks unnecessary", "tokens/s, continuous over static",
                 lambda of: of["fcfs"].output_tok_s / of["static"].output_tok_s),
        conclude("chunked prefill looks like pure overhead", "p99 ITL, unchunked over chunked",
                 lambda of: _late(of["fcfs"]) / _late(of["chunked:512"])),
        conclude("paging looks like a solution to no problem", "requests resident, paged over contiguous",
                 lambda of: of["paged"].residents["mean"] / of["contiguous"].residents["mean"]))


def _late(outcome: Outcome) -> float:
    return outcome.latencies["itl"]["p99"]


def _tight(machine: Machine, tokens: int) -> Machine:
    """A cache for as many requests of so many tokens as the machine has rows, and four times the rows."""
    capacity = machine.capacity
    pages = capacity.num_rows * capacity.layout.pages_for(tokens) + 1
    return replace(machine, capacity=replace(capacity, num_pages=min(pages, capacity.num_pages),
                                             num_rows=4 * capacity.num_rows))
