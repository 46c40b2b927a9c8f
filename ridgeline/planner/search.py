"""The cheapest deployment that meets an ask, over devices x parallelism x precision x batch, by the
estimates.

Replicas multiply speed and cost alike, so that their number follows from the rate, or is given, and is not
searched.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.comm import HOST_DEVICES
from ridgeline.ledger.layout import Layout, num_experts, tensor_sizes
from ridgeline.planner.ask import Ask
from ridgeline.planner.plan import misses, pool_ratio
from ridgeline.planner.setup import Setup, Workshop
from ridgeline.planner.timing import estimates
from ridgeline.spec.hardware import hardware_names

SEARCHED_CACHES: tuple[str, ...] = ("bf16", "fp8")
SEARCHED_WEIGHTS: tuple[str | None, ...] = (None, "fp8", "int8", "int4")  # None: as stored
_PER_DOUBLING = 4  # batches that are tried between one and its double


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One deployment that was priced. user_tok_s: of one user with prompts in between; usd_per_hour of all
    devices, usd_per_million output tokens at the full batch."""

    gpu: str
    layout: Layout
    weights: str
    kv: str
    batch: int
    num_devices: int
    ttft_s: float
    tpot_s: float
    user_tok_s: float
    output_tok_s: float
    usd_per_hour: float
    usd_per_million: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """feasible: cheapest first. front: those that no other beats in both cost and speed. num_tried, seconds:
    what it took. nearest: of the infeasible ones the one that misses least, None where nothing fits at all.
    unpriced: devices that were left out."""

    feasible: tuple[Option, ...]
    front: tuple[Option, ...]
    num_tried: int
    seconds: float
    nearest: Option | None
    why: str
    unpriced: tuple[str, ...]


def layouts(ask: Ask, shop: Workshop, most: int) -> Iterator[Layout]:
    """Layouts of one replica on at most so many devices: TP inside a host, stages, and experts over all of
    it."""
    spec = shop.model(ask).spec
    experts = num_experts(spec)
    for tp in (t for t in tensor_sizes(spec) if t <= min(most, HOST_DEVICES)):
        for pp in (p for p in (1, 2, 4, 8) if tp * p <= most and p <= len(spec.layers)):
            spread = [e for e in (tp, 2 * tp, 4 * tp, 8 * tp) if e > 1 and e * pp <= most] if experts else []
            for ep in dict.fromkeys([1, *(e for e in spread if not any(n % e for n in experts))]):
                layout = Layout(tp=tp, pp=pp, ep=ep)
                if all(getattr(ask, name) in (None, getattr(layout, name)) for name in ("tp", "pp", "ep")):
                    yield layout


def batches(most: int) -> list[int]:
    """1 to most, a few for each doubling."""
    found = {round(2 ** (i / _PER_DOUBLING)) for i in range(64) if 2 ** (i / _PER_DOUBLING) < most}
    return sorted(found | {most}) if most else []


def _options(setup: Setup, gpu: str, price: float) -> Iterator[tuple[Option, str]]:
    """Every batch of one deployment with what it misses."""
    ask, devices, most = setup.ask, setup.layout.num_devices, setup.max_rows()
    given, copies = ask.batch or ask.concurrency, setup.ask.dp or 1
    tries = batches(most) if given is None else [
        rows for rows in (setup.rows(given / copies),) if rows <= most]
    if not tries:
        return
    ttft_s, tpot_N, mixed_N = estimates(setup, tries)
    copied: dict[int, Layout] = {}
    for rows, tpot_s, mixed_s in zip(tries, tpot_N.tolist(), mixed_N.tolist(), strict=True):
        batch, pool = rows * setup.lanes, 1 + pool_ratio(setup, rows, tpot_s, ttft_s)
        tok_s, cost = batch / mixed_s, price * devices * pool
        wanted = ceil(ask.rate * ask.output / tok_s) if ask.rate else 1
        replicas = setup.ask.dp or wanted
        few = f"{wanted} replicas are needed for the rate" if wanted > replicas else ""
        needed = ceil(replicas * devices * pool)
        many = f"{needed} devices are needed" if ask.gpus and needed > ask.gpus else ""
        missed = " and ".join(filter(None, (misses(ask, ttft_s, mixed_s), many, few)))
        if replicas not in copied:
            copied[replicas] = replace(setup.layout, dp=replicas)
        yield Option(gpu=gpu, layout=copied[replicas], weights=setup.numerics.weights,
                     kv=ask.kv, batch=batch * replicas, num_devices=needed, ttft_s=ttft_s, tpot_s=mixed_s,
                     user_tok_s=1 / mixed_s, output_tok_s=tok_s * replicas, usd_per_hour=cost * replicas,
                     usd_per_million=cost / 3600 / tok_s * 1e6), missed


def search(ask: Ask, gpus: tuple[str, ...] = (), *, kvs: tuple[str, ...] = SEARCHED_CACHES,
           weights: tuple[str | None, ...] = SEARCHED_WEIGHTS, shop: Workshop | None = None) -> Search:
    """Everything that `ask` leaves open, priced. ask.gpus is the most devices (8); gpus: devices to choose
    from, all with a price where empty. Ranked by USD an hour where a rate is asked for, else by USD a
    token."""
    shop, start, most = shop or Workshop(), time.perf_counter(), ask.gpus or HOST_DEVICES
    formats = [w for w in weights if w is None or w != shop.model(ask).spec.stored_as]
    eight_bit_once = [w for w in formats if w != "int8" or "fp8" not in weights]
    feasible: list[Option] = []
    missed: list[tuple[Option, str]] = []
    tried, unpriced = 0, []
    names = gpus or hardware_names()
    for gpu in names:
        device = shop.device(replace(ask, gpu=gpu))
        price = device.price_usd_per_hour if ask.price_usd_per_hour is None else ask.price_usd_per_hour
        if price is None:
            unpriced.append(gpu)
            continue
        for layout in layouts(ask, shop, most // (ask.dp or 1)):
            for held in formats if "float8_e4m3fn" not in device.flops_per_s else eight_bit_once:
                for kv in kvs:
                    one = replace(ask, gpu=gpu, gpus=None, tp=layout.tp, pp=layout.pp, ep=layout.ep, dp=1,
                                  weights=held, kv=kv)
                    try:
                        setup = shop.setup(one)
                    except ConfigError:  # no link that is known joins so many of these devices
                        continue
                    setup = replace(setup, ask=replace(setup.ask, gpus=ask.gpus, dp=ask.dp))
                    for option, why in _options(setup, gpu, price):
                        tried += 1
                        if why:
                            missed.append((option, why))
                        else:
                            feasible.append(option)
    feasible.sort(key=lambda x: (x.usd_per_hour if ask.rate else x.usd_per_million, x.num_devices))
    near, why = min(missed, key=lambda pair: _miss(ask, pair[0])) if missed and not feasible else (None, "")
    if not feasible and not why:
        why = (f"nothing of up to {most} devices holds the model" if len(unpriced) < len(names)
               else "no device's price is known: give --price")
    return Search(feasible=tuple(feasible), front=front(feasible), num_tried=tried, nearest=near, why=why,
                  unpriced=tuple(unpriced), seconds=time.perf_counter() - start)


def _miss(ask: Ask, option: Option) -> float:
    """How far past the targets, as a ratio."""
    return max(option.ttft_s / (ask.ttft_s or float("inf")), option.tpot_s / (ask.tpot_s or float("inf")),
               option.num_devices / (ask.gpus or float("inf")),
               (ask.rate or 0.0) * ask.output / option.output_tok_s)


def front(options: list[Option]) -> tuple[Option, ...]:
    """The Pareto front: from the cheapest a token to the fastest for a user, each faster than all cheaper
    ones."""
    found: list[Option] = []
    for option in sorted(options, key=lambda x: (x.usd_per_million, -x.user_tok_s)):
        if not found or option.user_tok_s > found[-1].user_tok_s:
            found.append(option)
    return tuple(found)
