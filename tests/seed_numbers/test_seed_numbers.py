"""Protects the numbers that public sources state, by the ids of seed_numbers.csv: those that the ledger's
core answers. A row is checked against the file's own value and tolerance; "|" separates several values."""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.ledger.memory import needed_cache_bytes, plan_memory, reserved_cache_bytes, weights_bytes
from ridgeline.ledger.price import Price
from ridgeline.ledger.sums import Summer
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.hardware import hardware
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.quant import WeightPlan
from tests.ledger.shapes import Step, decodes, shape, uniform

Check = Callable[[], list[float]]
CHECKS: dict[str, Check] = {}


def seed(identity: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[identity] = check
        return check
    return register


def rows() -> dict[str, dict[str, str]]:
    with (Path(__file__).parent / "seed_numbers.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def kv(name: str, num_tokens: int, element_bytes: int = 2, **changes: object) -> int:
    return needed_cache_bytes(shape(name, **changes), num_tokens, element_bytes)


def resident(spec: ModelSpec, context: int, *, workspace_bytes: int, element_bytes: int = 2) -> int:
    """Sequences beside the weights of an 80e9-byte card; pages of one sequence's length, so no rounding."""
    layout = plan_layout(spec.cache(element_bytes), block_tokens=context)
    budget = 80 * 10**9 + layout.page_bytes  # page 0 is never given out
    plan = plan_memory(budget_bytes=budget, weights_bytes=nominal_weights(spec),
                       workspace_bytes=workspace_bytes, layout=layout)
    return plan.max_sequences(context)


def nominal_weights(spec: ModelSpec) -> int:
    return weights_bytes(spec, WeightPlan.uniform("bfloat16"))


LONG = (8192, 32768, 131072)

seed("S03")(lambda: [hardware("h100").balance()])
seed("S04")(lambda: [hardware("a100-80gb").balance()])
seed("S05")(lambda: [hardware("l40s").balance()])
seed("S06")(lambda: [hardware("h100").balance("float8_e4m3fn") / 2])
seed("S18")(lambda: [kv("llama-2-7b", 1)])
seed("S19")(lambda: [kv("llama-3-8b", 1)])
seed("S20")(lambda: [kv("mistral-7b-v0.1", 1)])
seed("S21")(lambda: [kv("llama-3-70b", 1)])
seed("S22")(lambda: [kv("llama-2-7b", n) / 1e9 for n in LONG])
seed("S23")(lambda: [kv("llama-3-8b", n) / 1e9 for n in LONG])
seed("S24")(lambda: [kv("llama-3-70b", n) / 1e9 for n in LONG])
seed("S26")(lambda: [kv("deepseek-v2", 1, element_bytes=1) / 60])
seed("S27")(lambda: [60 * 2 * 8 * 128 / kv("deepseek-v2", 1, element_bytes=1)])
seed("S30")(lambda: [nominal_weights(shape("llama-3-8b")) / kv("llama-3-8b", 1)])
seed("S31")(lambda: [nominal_weights(shape("llama-2-7b")) / kv("llama-2-7b", 1)])
seed("S34")(lambda: [kv("llama-3-8b", n) / 1e9 for n in (2048, *LONG)])
seed("S35")(lambda: [nominal_weights(shape("llama-3-8b")) / kv("llama-3-8b", n) for n in (2048, *LONG)])
seed("S39")(lambda: [resident(shape("llama-3-8b"), 8192, workspace_bytes=2 * 10**9)])
seed("S60")(lambda: [float(kv("llama-2-13b", 256 * 1024) > 80e9)])
seed("S65")(lambda: [kv("mistral-7b-v0.1", n, sliding_window=None) / 1e9 for n in LONG])
seed("S66")(lambda: [kv("llama-2-7b", 131072) / nominal_weights(shape("llama-2-7b"))])
seed("S68")(lambda: [nominal_weights(shape(name)) / kv(name, 8192) for name in ("llama-3-8b", "llama-2-7b")])
seed("S72")(lambda: [resident(shape("llama-3-8b"), 8192, workspace_bytes=2 * 10**9, element_bytes=1)])
seed("S90")(lambda: [kv("llama-2-13b", 1, num_key_value_heads=heads) for heads in (40, 8)])
seed("S97")(lambda: [resident(shape("llama-3-8b"), 8192, workspace_bytes=0)])


@seed("S25")
def attention_intensity() -> list[float]:
    found = []
    for group in (1, 4, 8, 32):
        acct = uniform(shape("llama-3-8b", num_key_value_heads=32 // group))
        step = decodes(1, 500)
        sums = Summer(acct.windows).sums(step.start, step.count, step.num_sampled)
        found += [x.flops / x.read_bytes for x in acct.at(sums) if x.op == "attention"]
    return found


@seed("S91")
def without_changing_the_weights() -> list[float]:
    layouts = [plan_layout(shape("llama-2-13b", num_key_value_heads=heads).cache(2), block_tokens=1024)
               for heads in (40, 8)]
    weights = nominal_weights(shape("llama-2-13b"))
    return [plan_memory(budget_bytes=80 * 10**9 + layout.page_bytes, weights_bytes=weights, workspace_bytes=0,
                        layout=layout).max_sequences(1024) for layout in layouts]


@seed("S92")
def keys_over_latents() -> list[float]:
    attention = shape("deepseek-v2").layers[0].blocks[0][1]
    assert isinstance(attention, MlaSpec)
    return [attention.num_heads * attention.nope_dim / attention.latent_dim]


@seed("S93")
def flat_rows() -> list[float]:
    step = Step([(0, 3), (0, 9), (0, 5)])
    return [Summer(()).sums(step.start, step.count, step.num_sampled).tokens]


@seed("S94")
def reserved_and_used() -> list[float]:
    spec = shape("llama-3-8b")
    layout = plan_layout(spec.cache(2), block_tokens=16)
    return [reserved_cache_bytes(layout, 131072), needed_cache_bytes(spec, 40, 2)]


@pytest.mark.parametrize("identity", sorted(CHECKS))
def test_a_stated_number_comes_out(identity: str) -> None:
    row = rows()[identity]
    tolerance = float(row["rel_tol"])
    expected = [float(value) for value in row["value"].split("|")]
    found = CHECKS[identity]()
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert math.isclose(ours, theirs, rel_tol=tolerance + 1e-9), (row["given"], ours, theirs)


def test_the_exact_floor_of_decode_is_below_the_nominal_one() -> None:
    """S32 counts all 8.03e9 parameters; what a step must read is 7 % less."""
    h100 = hardware("h100")
    price = Price(uniform(shape("llama-3-8b")), h100, flops_per_s=h100.rate("bfloat16"))
    nominal = nominal_weights(shape("llama-3-8b")) / h100.bytes_per_s
    assert nominal == pytest.approx(4.8e-3, rel=0.01)
    assert price(decodes(1, 1)) == pytest.approx(nominal * 7.505 / 8.030, rel=0.002)
