"""A plan: does it fit, how fast, at what price, and what binds. Floors and estimates are two readings of one
ask and are never mixed; `nominal` is the third, of closed forms.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from ridgeline.ledger.closed import end_to_end, in_flight, waiting_s
from ridgeline.ledger.layout import total_weights
from ridgeline.ledger.memory import needed_cache_bytes, reserved_cache_bytes
from ridgeline.planner.ask import KV_BYTES, Ask
from ridgeline.planner.nominal import nominal_reading
from ridgeline.planner.reading import Reading, binding_limit, per_million
from ridgeline.planner.room import Held
from ridgeline.planner.setup import Setup, Workshop
from ridgeline.planner.timing import Speed, Steps, mean_context, phases, timed, tokens_per_step
from ridgeline.spec.cache import Paged, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an ask gives; its prompt with visual tokens is setup.ask's. exact: floors; estimate: floors over
    efficiencies; nominal: closed forms. feasible: it fits and the estimate meets the targets; else `why` says
    what fails. goodput_batch: the largest batch whose estimate meets them, None without targets or where none
    does."""

    ask: Ask
    setup: Setup
    batch: int
    steps: Steps
    memory: Held
    exact: Reading
    estimate: Reading
    nominal: Reading
    sustained_tok_s: tuple[float, float]
    kv_reserved_bytes_per_sequence: int
    max_context_at_batch_tokens: int
    goodput_batch: int | None
    feasible: bool
    why: str

    @property
    def prefill_share(self) -> float:
        """Of the estimated time that devices spend on a request, the share of its prompt."""
        decode_s = self.setup.ask.output * self.steps.estimate.tpot_s / max(self.steps.rows, 1)
        return self.steps.estimate.prefill_s / (self.steps.estimate.prefill_s + decode_s)


def growth_bytes(setup: Setup) -> float:
    """Cache bytes that one more token writes."""
    kept = [one for layer in setup.spec.cache(KV_BYTES[setup.ask.kv]) for one in layer]
    return sum(one.bytes_per_entry / one.tokens_per_entry if isinstance(one, Paged)
               else one.bytes_per_token if isinstance(one, Window) else 0 for one in kept)


def limits(setup: Setup) -> tuple[float, float, int]:
    """(B*, B_cross, B_max) of the whole deployment, exactly: every expert that a batch reads, whole pages."""
    lane = setup.deployment

    def weights_over_cache(rows: float) -> float:
        step = lane.decode([replace(phases(setup.ask, 1)[0], rows=rows)])
        cache = step.total("cache_bytes")
        return rows * (step.total("moved_bytes") - cache) / cache if cache else inf

    cross = 1e6
    for _ in range(40 if setup.deployment.stages[0].num_routed else 2):
        cross = weights_over_cache(cross)
        if cross == inf:
            break
    return lane.ridge_rows() * setup.lanes, cross * setup.lanes, setup.max_rows() * setup.lanes


def pool_ratio(setup: Setup, rows: int, tpot_s: float, prefill_s: float) -> float:
    """Prefill devices that a decode device keeps busy; 0 where the same devices do both."""
    return rows / setup.ask.output / tpot_s * prefill_s if setup.ask.disaggregate else 0.0


def reading(setup: Setup, steps: Steps, speed: Speed, batch: int,
            bounds: tuple[float, float, int]) -> Reading:
    """An exact reading: of floors or of estimates, as `speed` is."""
    ask, decode, lanes = setup.ask, steps.decode, setup.lanes
    b_star, b_cross, b_max = bounds
    many = setup.deployment.decode([replace(steps.decode_rows, rows=1e9)])
    moved = decode.total("moved_bytes")
    tokens = tokens_per_step(ask)
    price = setup.device.price_usd_per_hour if ask.price_usd_per_hour is None else ask.price_usd_per_hour
    devices = setup.layout.num_devices * (
        1 + pool_ratio(setup, steps.rows, speed.tpot_s, speed.prefill_s))
    return Reading(
        fits=b_max >= batch, weights_bytes=total_weights(setup.deployment.stages, setup.layout),
        kv_bytes_per_token=growth_bytes(setup), b_star=b_star, b_cross=b_cross, b_max=b_max,
        kv_bytes_per_sequence=needed_cache_bytes(setup.spec, setup.length, KV_BYTES[ask.kv]),
        ttft_s=speed.ttft_s, tpot_s=speed.tpot_s, e2e_s=end_to_end(speed.ttft_s, speed.tpot_s, ask.output),
        output_tok_s=batch / speed.tpot_s, per_user_tok_s=1 / speed.tpot_s,
        kv_share_of_step=decode.total("cache_bytes") / moved, intensity=decode.total("flops") / moved,
        intensity_ceiling=many.total("flops") / many.total("moved_bytes"),
        throughput_ceiling_tok_s=lanes * tokens * setup.deployment.ceiling_rows_per_s(steps.decode_rows),
        binding_limit=binding_limit(b_star, b_cross, b_max),
        cost_per_million_usd=per_million(price, devices, batch / speed.mixed_s),
        max_context_tokens=setup.max_tokens())


def settle_batch(ask: Ask, shop: Workshop) -> tuple[int, str]:
    """Sequences in flight, and why not more where a rate needs more than memory holds. By Little's law a rate
    keeps rate * output * TPOT of them decoding, prompts in between included, as estimated."""
    if ask.rate is None:
        return ask.batch or ask.concurrency or 1, ""
    setup = shop.setup(ask)
    most = setup.max_rows()
    wanted = ask.rate

    def completed(rows: int) -> float:
        return rows * setup.lanes / (ask.output * timed(setup, rows).estimate.mixed_s) if rows else 0.0

    rows = _first(lambda n: completed(n) >= wanted, most)
    if rows is None:
        return max(most, 1) * setup.lanes, (
            f"{wanted:g} requests/s are more than it completes: {completed(most):.3g} with the "
            f"{most * setup.lanes} sequences that memory holds")
    return rows * setup.lanes, ""


def _first(holds: Callable[[int], bool], most: int) -> int | None:
    """The smallest n in 1..most that holds, None without one; once it holds it goes on to."""
    if most < 1 or not holds(most):
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def misses(ask: Ask, ttft_s: float, mixed_s: float) -> str:
    """Which targets are not met, "" when all are. mixed_s: TPOT with prompts in between."""
    wanted = (("TTFT", ttft_s, ask.ttft_s), ("TPOT", mixed_s, ask.tpot_s))
    return " and ".join(f"{name} is {value * 1e3:.3g} ms where {limit * 1e3:.3g} are wanted"
                        for name, value, limit in wanted if limit is not None and value > limit)


def goodput_batch(setup: Setup) -> int | None:
    """The largest batch that fits and whose estimate meets the targets: past it, more tokens are fewer good
    ones."""
    if setup.ask.ttft_s is None and setup.ask.tpot_s is None:
        return None
    most = setup.max_rows()

    def missed(rows: int) -> bool:
        speed = timed(setup, rows).estimate
        return bool(misses(setup.ask, speed.ttft_s, speed.mixed_s))

    bad = _first(missed, most)
    rows = most if bad is None else bad - 1
    return rows * setup.lanes or None


def plan(ask: Ask, shop: Workshop | None = None) -> Plan:
    """ConfigError for an ask that no arithmetic can meet; an ask that does not fit gives a plan that says
    so."""
    shop = shop or Workshop()
    batch, why = settle_batch(ask, shop)
    setup = shop.setup(replace(ask, batch=batch, rate=None, concurrency=None))
    steps, bounds = timed(setup, setup.rows(batch)), limits(setup)
    exact, estimate = (reading(setup, steps, speed, batch, bounds) for speed in (steps.floor, steps.estimate))
    memory = setup.held(steps.rows)
    if not exact.fits:
        why = f"{batch} sequences of {setup.length} tokens do not fit: {exact.b_max} do"
    why = why or misses(ask, steps.estimate.ttft_s, steps.estimate.mixed_s)
    return Plan(
        ask=ask, setup=setup, batch=batch, steps=steps, memory=memory, exact=exact, estimate=estimate,
        nominal=nominal_reading(setup, batch, mean_context(setup.ask)), goodput_batch=goodput_batch(setup),
        sustained_tok_s=(batch / steps.floor.mixed_s, batch / steps.estimate.mixed_s),
        kv_reserved_bytes_per_sequence=reserved_cache_bytes(setup.rooms[0].layout, setup.length),
        max_context_at_batch_tokens=setup.max_tokens(steps.rows),
        why=why, feasible=not why)


def little(plan: Plan) -> dict[str, float]:
    """Little's law both ways, by the estimate with prompts in between: what a batch completes, and what a
    rate keeps in flight, its wait for other prompts included."""
    speed, output = plan.steps.estimate, plan.ask.output
    rate = plan.batch / (output * speed.mixed_s) if plan.ask.rate is None else plan.ask.rate
    busy_s = speed.prefill_s + speed.encoder_s
    wait_s = waiting_s(rate / plan.setup.lanes, busy_s)
    stay_s = speed.ttft_s + wait_s + (output - 1) * speed.mixed_s
    return {"rate_per_s": rate, "wait_s": wait_s, "ttft_loaded_s": speed.ttft_s + wait_s, "stay_s": stay_s,
            "in_flight": in_flight(rate, stay_s),
            "completed_per_s_at_batch": plan.batch / (output * speed.mixed_s)}
