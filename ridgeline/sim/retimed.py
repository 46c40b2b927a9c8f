"""The requests of a record in virtual time, on the engine that recorded them but at the ledger's seconds:
what clients would have waited, beside what they did."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from ridgeline.base.stats import e2e_s, tpot_s, ttft_s
from ridgeline.base.trace import RequestRecord
from ridgeline.ledger.steps import StepSeconds
from ridgeline.schedule.origin import Origin
from ridgeline.sim.node import Machine, Node, Serving
from ridgeline.sim.outcome import Meter
from ridgeline.sim.replay import VOCABULARY, Recorded, Texts, request_again

_LATENCIES: tuple[tuple[str, Callable[[RequestRecord], float | None]], ...] = (
    ("ttft", ttft_s), ("tpot", tpot_s), ("e2e", e2e_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Medians over requests: seconds measured and simulated, and of |simulated / measured - 1| of each."""

    measured_s: float
    simulated_s: float
    error: float


def retime(recorded: Recorded, origin: Origin, seconds: StepSeconds) -> Mapping[str, Beside]:
    """By "ttft", "tpot" and "e2e", of requests that got all their tokens. Each arrives when its tokens were
    with the engine then, and gets as many as it got; the further choices of a request as many as its
    first."""
    firsts = [one for one in recorded.requests if not one.choice]
    texts = Texts(recorded.requests)
    offers = replace(origin.capacity, vocab_size=VOCABULARY, num_host_pages=0)
    meter = Meter(offers.num_pages)
    node = Node(Machine(name="recorded", capacity=offers, seconds=seconds, floor=seconds,
                        max_in_flight=origin.max_in_flight),
                Serving(policy=origin.policy, targets=origin.targets, prefix_caching=origin.prefix_caching),
                meter)
    for one in sorted(firsts, key=_came_s):
        node.advance(_came_s(one))
        node.add(request_again(recorded.requests, one, texts, num_output=max(one.num_output, 1)))
    node.advance(float("inf"))
    again = {one.record.id: one.record for one in meter.ended if not one.record.choice}
    whole = [one for one in firsts if one.finish in ("stop", "length")]
    found = {}
    for name, value in _LATENCIES:
        pairs = [(was, now) for one in whole if (was := value(one)) and (now := value(again[one.id]))]
        if pairs:
            found[name] = Beside(measured_s=median(was for was, _ in pairs),
                                 simulated_s=median(now for _, now in pairs),
                                 error=median(abs(now / was - 1) for was, now in pairs))
    return found


def _came_s(record: RequestRecord) -> float:
    return record.arrived_s if record.tokenised_s is None else record.tokenised_s
