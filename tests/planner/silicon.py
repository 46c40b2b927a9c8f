"""The public sample of served configurations (data/README.md) as points of a calibration, and the judgement:
what a fit that has not seen a model, or a device, says of it."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import log2
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.account import Line
from ridgeline.ledger.calibrate import RANGES, SKEWS, Point, Points, fit
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.layout import Layout, Stage, cut, stages
from ridgeline.ledger.memory import needed_cache_bytes
from ridgeline.ledger.sums import Rows
from ridgeline.ledger.work import Product, Worker
from ridgeline.models.checkpoint import open_shape
from ridgeline.models.families import model_spec
from ridgeline.models.shapes import SHAPES
from ridgeline.planner.room import STEP_TOKENS
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cost import DISTINCT
from ridgeline.spec.hardware import HardwareSpec, hardware
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.quant import FORMATS, WeightFormat

SAMPLE = Path(__file__).parent / "data" / "served_medians.csv"
# What others publish, by their own definitions: medians over runs of their own, not of this sample. The last
# four are of one independent comparison on H100 servers (inference-sim, training branch; 2 to 13 runs each).
PUBLISHED = (
    "BLIS, 36 held-out runs: E2E 6.7 %, ITL 7.1 %, TTFT 17.6 %",
    "AIConfigurator, 7 runs: E2E 15.2 %, ITL 20.1 %, TTFT 653 %",
    "Vidur, 2 runs: E2E 15.5 %, ITL 16.7 %, TTFT 22.7 %",
    "llm-optimizer, 8 runs: E2E 46.8 %, ITL 58.1 %, TTFT 486 %",
    "a roofline with fixed MFU, 13 runs: E2E 54.4 %, ITL 55.3 %, TTFT 99.9 %")
FILLED, WORKSPACE = 0.9, 2e9  # share of the memory that engines take; bytes beside weights and cache
MEAN_LENGTH = 0.9  # of the nominal one, where lengths were drawn from 0.8 to 1 of it
CLASSES = {"h100": "hopper", "h200": "hopper", "b200": "blackwell", "b300": "blackwell", "gb200": "blackwell"}
FORMAT_OF = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_b128", "nvfp4": "nvfp4",
             "int4_wo": "int4_g32"}
# Checkpoints whose FP8 has a scale a block of 128 x 128; those whose attention stays 16 bit beside packed
# experts: all of gpt-oss and Kimi-K2.5, and the NVFP4 exports of DeepSeek and MiniMax.
BY_BLOCK = ("deepseek-v3", "minimax-m2.5", "qwen3-235b-a22b", "qwen3-32b")
PLAIN_ATTENTION = {"gpt-oss-120b": ("",), "kimi-k2.5": ("",), "deepseek-v3": ("nvfp4",),
                   "minimax-m2.5": ("nvfp4",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One configuration at its median. waves: all lengths equal; bursts: and prompts sent together."""

    engine: str
    model: str
    device: str
    weights: str
    experts: str
    prompt: float
    output: float
    users: int
    layout: Layout
    waves: bool
    bursts: bool
    ttft_s: float
    tpot_s: float

    @property
    def group(self) -> str:
        return f"{self.engine} {self.model} {self.device}"


@cache
def sample() -> tuple[Served, ...]:
    """All of the file."""
    found = []
    with SAMPLE.open(encoding="utf-8") as file:
        for r in csv.DictReader(file):
            equal = r["equal_lengths"] != "0"
            share = 1.0 if equal else MEAN_LENGTH
            tp, ep, lanes = int(r["tp"]), int(r["ep"]), int(r["attention_dp"])
            replicas = lanes if ep == 1 else 1
            found.append(Served(
                engine=r["engine"], model=r["model"], device=r["device"], weights=r["weights"],
                experts=r["experts"], prompt=float(r["prompt"]) * share, output=float(r["output"]) * share,
                users=int(r["users"]), layout=Layout(tp=tp, ep=ep, dp=replicas), waves=equal,
                bursts=r["equal_lengths"] == "2", ttft_s=float(r["ttft_ms"]) / 1e3,
                tpot_s=float(r["tpot_ms"]) / 1e3))
    return tuple(found)


@cache
def spec_of(model: str) -> ModelSpec:
    """Kimi-K2.5's text model has DeepSeek-V3's blocks; MiniMax-M2.5 is priced as a Qwen3 MoE of its sizes."""
    if model == "kimi-k2.5":
        return model_spec({**SHAPES["deepseek-v3"], "n_routed_experts": 384, "num_attention_heads": 64,
                           "num_key_value_heads": 64, "vocab_size": 163840, "first_k_dense_replace": 1,
                           "n_group": 1, "topk_group": 1})
    if model == "minimax-m2.5":
        return model_spec({**SHAPES["qwen3-235b-a22b"], "hidden_size": 3072, "num_hidden_layers": 62,
                           "num_attention_heads": 48, "num_key_value_heads": 8, "num_experts": 256,
                           "moe_intermediate_size": 1536, "intermediate_size": 1536, "vocab_size": 200064})
    return open_shape(model).spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Formats of a configuration: of routed experts, of attention, of the other matrices."""

    experts: WeightFormat
    attention: WeightFormat
    others: WeightFormat
    by_block: bool

    def of(self, name: str, param: ParamSpec) -> WeightFormat:
        if param.role == "scalar":
            return FORMATS["float32"]
        if param.role not in ("linear", "plain") or name in ("head.weight", "embed.weight"):
            return FORMATS["bfloat16"]
        return self.experts if len(param.shape) == 3 else self.attention if ".attn" in name else self.others

    def num_bytes(self, name: str, param: ParamSpec) -> float:
        columns = param.shape[-1] if param.shape else 1
        return self.of(name, param).num_bytes(param.num_elements // max(columns, 1), columns)

    def product(self, device: HardwareSpec, line: Line) -> Product:
        plain, rates = device.flops_per_s["bfloat16"], device.flops_per_s
        if line.block == "model" or line.op in ("attention", "router"):
            return Product(flops_per_s=plain)
        routed = any(name == DISTINCT for (name, _), _ in line.read)
        rest = self.attention if line.block in ("attention", "mla") else self.others
        held = self.experts if routed else rest
        packed = held.dtype in rates and held.bits < 16
        rate = rates[held.dtype] if packed else plain
        return Product(flops_per_s=rate, packed=packed, blocked=packed and held.bits == 8 and self.by_block,
                       unpacked=0.0 if packed else log2(16 / held.bits))


def held(one: Served) -> Held:
    weights, experts = FORMATS[FORMAT_OF[one.weights]], FORMATS[FORMAT_OF[one.experts]]
    others = attention = weights
    if one.weights in PLAIN_ATTENTION.get(one.model, ()) or PLAIN_ATTENTION.get(one.model) == ("",):
        attention = FORMATS["bfloat16"]
    if one.model in ("gpt-oss-120b", "kimi-k2.5"):
        others = FORMATS["bfloat16"]
    if one.model == "gpt-oss-120b":
        experts = FORMATS["mxfp4"]
    return Held(experts=experts, attention=attention, others=others,
                by_block=one.weights == "fp8_block" or one.model in BY_BLOCK)


def cache_bytes(one: Served) -> float:
    """Of a K or V number; the file does not say. FP8 where an engine's published recipes for these
    checkpoints quantize the cache, else 16 bit."""
    hopper = CLASSES[one.device] == "hopper"
    plain = {"vllm": one.model == "qwen3-32b" or (one.model == "gpt-oss-120b" and hopper),
             "trtllm": one.model == "gpt-oss-120b" and hopper, "sglang": hopper}
    return 2.0 if one.weights == "bf16" or one.model == "kimi-k2.5" or plain[one.engine] else 1.0


@cache
def _worker(model: str, layout: Layout, formats: Held, element_bytes: float, device: str,
            skew: float) -> Worker:
    one = hardware(device)
    found = _stages(model, layout, formats, element_bytes, skew)
    return Worker(found, layout, one, partial(formats.product, one))


@cache
def _stages(model: str, layout: Layout, formats: Held, element_bytes: float,
            skew: float) -> tuple[Stage, ...]:
    return stages(cut(spec_of(model), layout), weight_bytes=formats.num_bytes,
                  cache_element_bytes=element_bytes, skew=skew)


def residents(one: Served) -> float:
    """Whole sequences that fit on a group of devices beside the weights; more users than these wait."""
    device, element = hardware(one.device), cache_bytes(one)
    (stage,) = _stages(one.model, one.layout, held(one), element, 0.0)
    free = FILLED * (device.usable_bytes or device.marketed_bytes) - stage.weights_bytes - WORKSPACE
    return free / needed_cache_bytes(stage.spec, int(one.prompt + one.output / 2), int(element))


def point(one: Served) -> Point:
    """With its work at every skew."""
    lanes = one.layout.groups * one.layout.dp
    users = max(min(one.users / lanes, residents(one)), 1.0)
    decode = Rows(rows=users, start=int(one.prompt + one.output / 2), count=1)
    prompt = Rows(rows=1, start=0, count=int(one.prompt))
    routed = any(block.kind == "moe" for _, block in spec_of(one.model).layers[-1].blocks)
    workers = [_worker(one.model, one.layout, held(one), cache_bytes(one), one.device, skew)
               for skew in (SKEWS if routed else SKEWS[:1])]
    return Point(decode=tuple(worker([decode]) for worker in workers),
                 prompt=(workers[0]([prompt]),), users=users, output=one.output,
                 seconds=one.tpot_s, first_s=one.ttft_s, waves=one.waves, about=one.group,
                 burst_steps=users * one.prompt / STEP_TOKENS if one.bursts else 0.0)


Pairs = Sequence[tuple[Served, Point]]


# What is known before counts as so many witnesses (`Points.witnesses`; an engine has 50 to 110): of physics
# little, of what the engine does on other devices more, so that a few points of a class do not outweigh that.
_PHYSICS, _ENGINE = 5.0, 12.0
_FEWEST = 8  # points that are worth a fit


def _drawn(pairs: Pairs, start: Efficiency | None, known: float) -> Efficiency | None:
    """`start` fitted on, where there are enough points."""
    if len(pairs) < _FEWEST:
        return start
    points = Points([p for _, p in pairs])
    return fit(points, start, pull=known / points.witnesses)


def calibrated(own: Pairs, others: Pairs, device_class: str) -> Efficiency:
    """The factors of an engine on a class of devices. What engines have in common, one point of five says;
    from there go an engine's own factors and a class's over all engines, and where both lead to, the
    engine's points on the class are drawn to. Without others: the engine's, from there the class's."""
    def of_class(pairs: Pairs) -> Pairs:
        return [pair for pair in pairs if CLASSES[pair[0].device] == device_class]

    common = _drawn([*own, *others][::5], None, _PHYSICS) if others else None
    every = _drawn(own, common, _PHYSICS)
    there = _drawn(of_class([*own, *others])[::5], common, _PHYSICS)
    if common is not None and every is not None and there is not None:
        moved = {name: getattr(every, name) * getattr(there, name) / getattr(common, name) for name in RANGES}
        every = every.having({name: min(max(x, RANGES[name].low), RANGES[name].high)
                              for name, x in moved.items()})
    found = _drawn(of_class(own), every, _ENGINE)
    assert found is not None, "no points"
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Relative errors of configurations that a fit had not seen."""

    what: str
    tpot: NDArray[np.float64]
    ttft: NDArray[np.float64]
    output_tok_s: NDArray[np.float64]

    def text(self) -> str:
        figures = [f"{name} p50 {np.median(abs(e)):.1%} p90 {np.quantile(abs(e), 0.9):.1%}"
                   for name, e in (("TPOT", self.tpot), ("TTFT", self.ttft), ("tok/s", self.output_tok_s))]
        return f"{self.what}: {len(self.tpot)} configurations, {', '.join(figures)}"


def judge(pairs: Pairs, held_out: Callable[[Served, Served], bool], what: str, others: Pairs = ()) -> Judged:
    """Every configuration of one engine, each by a fit without those that it is `held_out` with, of the
    engine and of others."""
    cases: dict[tuple[str, ...], list[int]] = {}
    for i, (one, _) in enumerate(pairs):
        seen = {other.group for other, _ in (*pairs, *others) if not held_out(one, other)}
        cases.setdefault((CLASSES[one.device], *sorted(seen)), []).append(i)
    errors = np.zeros((3, len(pairs)))
    for (device_class, *groups), chosen in cases.items():
        own, more = ([pair for pair in some if pair[0].group in groups] for some in (pairs, others))
        eff = calibrated(own, more, device_class)
        tpot, ttft = Points([pairs[i][1] for i in chosen]).served(eff)
        for n, i in enumerate(chosen):
            one = pairs[i][0]
            cycle_s = one.ttft_s + one.output * one.tpot_s
            errors[:, i] = (tpot[n] / one.tpot_s - 1, ttft[n] / one.ttft_s - 1,
                            cycle_s / (ttft[n] + one.output * tpot[n]) - 1)
    return Judged(what=what, tpot=errors[0], ttft=errors[1], output_tok_s=errors[2])


def pairs_of(engine: str, every: int = 1) -> list[tuple[Served, Point]]:
    """An engine's configurations, one of `every`."""
    return [(one, point(one)) for one in [one for one in sample() if one.engine == engine][::every]]


def same_model(one: Served, other: Served) -> bool:
    return one.model == other.model


def same_device(one: Served, other: Served) -> bool:
    return one.device == other.device
