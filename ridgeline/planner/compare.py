"""What one change does: knobs ranked, each tagged with the sides that it moves; and the one change that makes
an infeasible plan feasible."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.layout import tensor_sizes
from ridgeline.models.catalog import SHORT
from ridgeline.planner.ask import Ask, Speculate
from ridgeline.planner.plan import Plan, plan
from ridgeline.planner.setup import Workshop

_OTHER_DEVICES = ("a100-80gb", "l40s", "h100", "h200", "b200", "mi300x")
_MOVED = 0.01  # a metric that moves by less is not touched


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One change. quality: it changes the model or its numbers, so that answers may get worse. elsewhere: it
    takes another device."""

    name: str
    ask: Ask
    quality: bool = False
    elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A knob's plan beside the base, by the estimates: each a ratio of new over old (below 1: smaller).
    sides: "prefill", "decode", "capacity", as they moved. gain: of output tokens for the money, or a device
    where no price is known."""

    knob: Knob
    ttft: float
    tpot: float
    sustained: float
    b_max: float
    gain: float
    sides: tuple[str, ...]
    feasible: bool
    plan: Plan


def knobs(plan: Plan) -> Iterator[Knob]:
    """The changes that the plan's ask leaves room for."""
    ask, setup = plan.ask, plan.setup
    heads = {getattr(b, "num_kv_heads", 0) for layer in setup.spec.layers for _, b in layer.blocks} - {0}
    if len(heads) == 1 and min(heads) > 1 and "num_kv_heads" not in ask.overrides:
        fewer = 8 if min(heads) > 8 else min(heads) // 2
        yield Knob(name=f"GQA with {fewer} KV heads", quality=True,
                   ask=replace(ask, overrides={**ask.overrides, SHORT["num_kv_heads"]: fewer}))
    if ask.kv == "bf16":
        yield Knob(name="fp8 KV cache", ask=replace(ask, kv="fp8"), quality=True)
    for weights in ("fp8", "int8", "int4"):
        if setup.numerics.weight_bytes > (0.5 if weights == "int4" else 1):
            yield Knob(name=f"{weights} weights", ask=replace(ask, weights=weights), quality=True)
    yield from _layouts(plan)
    if ask.speculate is None:
        drafts = Speculate(gamma=4, alpha=0.8, draft=0.05)
        yield Knob(name="speculation (4 drafts, 80 % accepted)", ask=replace(ask, speculate=drafts))
    if ask.rate is None:
        yield Knob(name=f"batch {2 * plan.batch}", ask=replace(ask, batch=2 * plan.batch, concurrency=None))
    if not ask.shared_prefix and not ask.prefix_hit:
        yield Knob(name="half of each prompt in the cache", ask=replace(ask, prefix_hit=0.5))
    if not ask.disaggregate and ask.arrivals == "steady":
        yield Knob(name="prefill on devices of its own", ask=replace(ask, disaggregate=True))
    for gpu in _OTHER_DEVICES:
        if gpu != ask.gpu:
            other = replace(ask, gpu=gpu, memory_bytes=None, price_usd_per_hour=None)
            yield Knob(name=f"on {gpu}", ask=other, elsewhere=True)


def _layouts(plan: Plan) -> Iterator[Knob]:
    """More devices: the next degrees of tensor parallelism that divide, and a second replica."""
    now = plan.setup.layout
    if now.ep == 1:
        for tp in [t for t in tensor_sizes(plan.setup.spec) if t > now.tp and t % now.tp == 0][:3]:
            yield Knob(name=f"TP {tp}", ask=replace(plan.ask, tp=tp, gpus=None, pp=now.pp, dp=now.dp))
    yield Knob(name=f"{2 * now.dp} replicas", ask=replace(plan.ask, dp=2 * now.dp, gpus=None, tp=now.tp))


def _effect(base: Plan, knob: Knob, shop: Workshop) -> Effect | None:
    """None where the device, the model or the layout cannot be."""
    try:
        found = plan(knob.ask, shop)
    except ConfigError:
        return None
    if knob.elsewhere and found.setup.device == base.setup.device:
        return None
    old, new = base.estimate, found.estimate
    ttft, tpot = new.ttft_s / old.ttft_s, new.tpot_s / old.tpot_s
    b_max = new.b_max / old.b_max if old.b_max else float("inf")
    sustained = found.sustained_tok_s[1] / base.sustained_tok_s[1]
    if old.cost_per_million_usd and new.cost_per_million_usd:
        gain = old.cost_per_million_usd / new.cost_per_million_usd
    else:
        gain = sustained * base.setup.layout.num_devices / found.setup.layout.num_devices
    moved = (("prefill", ttft), ("decode", tpot), ("capacity", b_max))
    sides = tuple(name for name, ratio in moved if abs(ratio - 1) > _MOVED)
    return Effect(knob=knob, ttft=ttft, tpot=tpot, sustained=sustained, b_max=b_max, gain=gain, plan=found,
                  sides=sides, feasible=found.feasible)


def compare(base: Plan, shop: Workshop | None = None) -> tuple[Effect, ...]:
    """The knobs' effects: first those that make or leave the plan feasible, by gain."""
    shop = shop or Workshop()
    found = [effect for knob in knobs(base) if (effect := _effect(base, knob, shop))]
    return tuple(sorted(found, key=lambda effect: (not effect.feasible, -effect.gain)))


def remedy(base: Plan, shop: Workshop | None = None) -> str:
    """The one change that makes an infeasible plan feasible, at the least cost a token; what leaves the model
    as it is goes first; where no single change does, one that does at a smaller batch. "" where none does."""
    shop = shop or Workshop()
    changes = [*knobs(base)]
    limits = [base.exact.b_max, base.goodput_batch or 0, 1]
    changes += [Knob(name=f"batch {n}", ask=replace(base.ask, batch=n, concurrency=None)) for n in limits
                if 0 < n < base.batch and base.ask.rate is None]
    room = base.max_context_at_batch_tokens
    if room > base.setup.ask.prompt:
        output = room - base.setup.ask.prompt
        changes.append(Knob(name=f"at most {output} output tokens", ask=replace(base.ask, output=output)))
    tried = [effect for knob in changes if (effect := _effect(base, knob, shop))]
    found = [effect for effect in tried if effect.feasible] or _with_fewer(base, tried, shop)
    if not found:
        return ""
    best = min(found, key=lambda effect: (effect.knob.elsewhere, effect.knob.quality, -effect.gain))
    return best.knob.name + (" (measure quality)" if best.knob.quality else "")


def _with_fewer(base: Plan, tried: list[Effect], shop: Workshop) -> list[Effect]:
    """The changes that are enough together with the batch that meets the targets."""
    with_batch = [replace(x.knob, name=f"{x.knob.name} and batch {x.plan.goodput_batch}",
                          ask=replace(x.knob.ask, batch=x.plan.goodput_batch, concurrency=None))
                  for x in tried if x.plan.goodput_batch and base.ask.rate is None]
    return [effect for knob in with_batch if (effect := _effect(base, knob, shop)) and effect.feasible]


def compare_json(effects: tuple[Effect, ...]) -> list[dict[str, Any]]:
    """The effects; ratios of new over old, None where there was nothing before."""
    return [{"knob": x.knob.name, "measure_quality": x.knob.quality, "sides": list(x.sides),
             "feasible": x.feasible, "why": x.plan.why, "ttft": x.ttft, "tpot": x.tpot,
             "sustained_tok_s": x.sustained, "b_max": None if x.b_max == float("inf") else x.b_max,
             "tokens_per_usd": x.gain} for x in effects]


def compare_text(effects: tuple[Effect, ...]) -> str:
    """A row a knob: changes of the estimates against the plan as asked."""
    def change(ratio: float) -> str:
        return "new" if ratio == float("inf") else f"{ratio - 1:+.0%}"

    rows = [f"{'one change':<40}{'TTFT':>7}{'TPOT':>7}{'tok/s':>8}{'B_max':>8}{'tok/USD':>9}  touches"]
    for one in effects:
        tags = [*one.sides, *(["measure quality"] if one.knob.quality else []),
                *([] if one.feasible else [f"infeasible: {one.plan.why}"])]
        rows.append(f"{one.knob.name:<40}{change(one.ttft):>7}{change(one.tpot):>7}{change(one.sustained):>8}"
                    f"{change(one.b_max):>8}{change(one.gain):>9}  {', '.join(tags)}")
    return "\n".join(rows)
