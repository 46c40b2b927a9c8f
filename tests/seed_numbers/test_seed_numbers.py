"""Protects the numbers that public sources state: every row of seed_numbers.csv, computed by the ledger and
checked against the file's own value and tolerance; "|" separates several values. Exact where a row is exact,
in the closed forms' nominal reading where its `given` says so."""

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.ledger import closed, training
from ridgeline.ledger.closed import Shape, shape_of
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.memory import needed_cache_bytes, reserved_cache_bytes, weights_bytes
from ridgeline.ledger.price import Price
from ridgeline.ledger.sums import Summer
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.cost import expected_distinct
from ridgeline.spec.hardware import hardware
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.quant import WeightPlan
from tests.ledger.shapes import Step, decodes, room, shape, uniform

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
    return room(spec, layout, budget, nominal_weights(spec), workspace_bytes).max_rows(context)


def nominal_weights(spec: ModelSpec) -> int:
    return weights_bytes(spec, WeightPlan.uniform("bfloat16"))

NEAR, LONG = 2048, (8192, 32768, 131072)
CONTEXTS = (NEAR, *LONG)
H100 = hardware("h100")
BF16 = H100.rate("bfloat16")
ASSUMED = Efficiency()
LLAMA3, LLAMA2, LLAMA13 = (shape_of(shape(name)) for name in ("llama-3-8b", "llama-2-7b", "llama-2-13b"))
BACKBONE = replace(LLAMA2, num_params=7.3e9)  # of the vision rows
OUTPUTS = (20, 40, 60, 80, 120, 160, 200, 500)  # eight requests, 1180 tokens, the longest 500
TILES, PATCHES, PIXELS = 13, 729, 2400  # PIXELS: the prompt of one picture, as the source rounds it


def prompt_s(model: Shape, num_tokens: float) -> float:
    return closed.prefill_flops(model, num_tokens) / (BF16 * ASSUMED.prefill)


def step_s(model: Shape, context: float, batch: int = 1, weight: float = 2, cache: float = 2) -> float:
    return closed.step_seconds(model, batch, context, weight, cache, H100.bytes_per_s)


def encoder_flops() -> float:
    return closed.encoder_flops(400e6, 27, 1152, PATCHES, TILES)


def encoder_s() -> float:
    return encoder_flops() / (BF16 * ASSUMED.encoder)


def sharded_s(ways: int) -> float:
    return closed.step_seconds(LLAMA3, 1, 0, 2, 2, H100.bytes_per_s, ways, ASSUMED.collective_s)


def conversations(model: Shape, images: int) -> float:
    """In the 63 GB that the source leaves; the prompt of one picture as it rounds it."""
    tokens = PIXELS + (images - 1) * closed.visual_tokens(TILES * PATCHES, 4)
    return closed.max_sequences(63e9, 0, closed.kv_bytes(model, tokens, 2))


def gqa(model: Shape, num_kv_heads: int) -> Shape:
    kept = model.kv_elements * num_kv_heads / model.num_kv_heads
    return replace(model, num_kv_heads=num_kv_heads, kv_elements=kept)


seed("S01")(lambda: [closed.linear_intensity(8192, 4096, 4096, 2)])
seed("S02")(lambda: [closed.linear_intensity(1, 4096, 4096, 2)])
seed("S03")(lambda: [H100.balance()])
seed("S04")(lambda: [closed.ridge_batch(hardware("a100-80gb").balance(), 2)])
seed("S05")(lambda: [closed.ridge_batch(hardware("l40s").balance(), 2)])
seed("S06")(lambda: [closed.ridge_batch(H100.balance("float8_e4m3fn"), 1)])
seed("S07")(lambda: [closed.prefill_flops(LLAMA3, 8192)])
seed("S08")(lambda: [prompt_s(LLAMA3, 8192)])
seed("S09")(lambda: [prompt_s(LLAMA3, 8192) / 8192])
seed("S10")(lambda: [closed.decode_flops(LLAMA3, 8192)])
seed("S11")(lambda: [closed.step_bytes(LLAMA3, 1, 8192, 2, 2)])
seed("S12")(lambda: [step_s(LLAMA3, 8192)])
seed("S13")(lambda: [closed.decode_flops(LLAMA3, 8192) / step_s(LLAMA3, 8192) / BF16])
seed("S14")(lambda: [step_s(LLAMA3, 8192) / (prompt_s(LLAMA3, 8192) / 8192)])
seed("S15")(lambda: [closed.uncached_flops(LLAMA3.num_params, 1000, 500)])
seed("S16")(lambda: [closed.cached_flops(LLAMA3.num_params, 1000, 500)])
seed("S17")(lambda: [closed.uncached_flops(1, 1000, 500) / closed.cached_flops(1, 1000, 500)])
seed("S28")(lambda: [closed.logits_bytes(256, LLAMA3.vocab_size)])
seed("S29")(lambda: [closed.logits_bytes(8192, LLAMA3.vocab_size)])
seed("S32")(lambda: [step_s(LLAMA3, 0)])
seed("S33")(lambda: [1 / step_s(LLAMA3, 0)])
seed("S36")(lambda: [closed.intensity_ceiling(LLAMA3, n, 2) for n in CONTEXTS])
seed("S37")(lambda: [closed.intensity_ceiling(LLAMA3, n, 2) / H100.balance() for n in CONTEXTS])
seed("S38")(lambda: [closed.throughput_ceiling(H100.bytes_per_s, LLAMA3, n, 2) for n in CONTEXTS])
seed("S40")(lambda: [closed.in_flight(20, 4)])
seed("S41")(lambda: [step_s(LLAMA3, 0, weight=0.5)])
seed("S42")(lambda: [closed.expected_tokens(0.8, 4)])
seed("S43")(lambda: [closed.speculation_gain(0.8, 4, 0.05)])
seed("S44")(lambda: [batch * (4 + 1) for batch in (8, 64)])
seed("S45")(lambda: [sharded_s(ways) for ways in (1, 2, 4, 8)])
seed("S46")(lambda: [sharded_s(1) / sharded_s(ways) for ways in (1, 2, 4, 8)])
seed("S47")(lambda: [expected_distinct((8, 2), batch) for batch in (1, 4, 16)])
seed("S48")(lambda: [TILES * PATCHES, closed.visual_tokens(TILES * PATCHES, 4)])
seed("S49")(lambda: [encoder_flops()])
seed("S50")(lambda: [encoder_s()])
seed("S51")(lambda: [prompt_s(BACKBONE, PIXELS)])
seed("S52")(lambda: [TILES * ASSUMED.tile_s + encoder_s() + prompt_s(BACKBONE, PIXELS)])
seed("S53")(lambda: [closed.kv_bytes(BACKBONE, closed.visual_tokens(TILES * PATCHES, 4), 2)])
seed("S54")(lambda: [conversations(BACKBONE, images) for images in (1, 4)])
seed("S55")(lambda: [closed.padded_waste((TILES, *[1] * 999), TILES)])
seed("S56")(lambda: [closed.slot_utilisation(OUTPUTS)])
seed("S57")(lambda: [prompt_s(LLAMA3, 8192) + step_s(LLAMA3, 8192)])
seed("S58")(lambda: [step_s(LLAMA13, 1024)])
seed("S59")(lambda: [1 / step_s(LLAMA13, 1024)])
seed("S63")(lambda: [training.training_bytes(7e9).low, training.training_bytes(7e9).high])
seed("S64")(lambda: [training.TRAINING_FLOPS, training.INFERENCE_FLOPS])
seed("S67")(lambda: [closed.attention_intensity(1024, tokens) for tokens in (1, 1024)])
seed("S69")(lambda: [step_s(LLAMA3, 131072) / step_s(LLAMA3, 0)])
seed("S70")(lambda: [closed.decode_flops(LLAMA3, 0) / step_s(LLAMA3, 0) / BF16])
seed("S71")(lambda: [closed.decode_attention_intensity(LLAMA3.group, 2) / H100.balance()])
seed("S73")(lambda: [step_s(LLAMA3, 0, weight=1)])
seed("S74")(lambda: [closed.ridge_batch(H100.balance(), weight) for weight in (0.5, 1)])
seed("S75")(lambda: [closed.payload_bytes(LLAMA3, 1)])
seed("S76")(lambda: [closed.num_collectives(LLAMA3, 2)])
seed("S77")(lambda: [closed.kv_copies(LLAMA3, 16)])
seed("S78")(lambda: [closed.ridge_batch(H100.balance(), 2) // (4 + 1)])
seed("S79")(lambda: [closed.best_drafts(0.8, cost) for cost in (0.05, 0.1, 0.2)])
seed("S80")(lambda: [closed.kv_bytes(BACKBONE, 30, 2)])
seed("S81")(lambda: [closed.visual_tokens(TILES * PATCHES, 4) / 30])
seed("S82")(lambda: [closed.prefill_flops(BACKBONE, PIXELS)])
seed("S83")(lambda: [TILES * ASSUMED.tile_s])
seed("S84")(lambda: [closed.visual_tokens(TILES * PATCHES, 1) + 30])
seed("S85")(lambda: [closed.visual_tokens(25 * PATCHES, 1)])
seed("S86")(lambda: [conversations(gqa(BACKBONE, 8), 1)])
seed("S88")(lambda: [step_s(LLAMA13, 1024, batch) for batch in (1, 16, 64)])
seed("S89")(lambda: [batch / step_s(LLAMA13, 1024, batch) for batch in (1, 16, 64)])
seed("S95")(lambda: [expected_distinct((8, 2), 4 + 1)])
seed("S96")(lambda: [training.parity_days(32e12, 8.6e12)])
seed("S98")(lambda: [closed.intensity(LLAMA3, 57, 8192, 2, 2)])
seed("S99")(lambda: [prompt_s(LLAMA3, 2048), step_s(LLAMA3, 2048 + 256 / 2, 16)])
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
seed("S34")(lambda: [kv("llama-3-8b", n) / 1e9 for n in CONTEXTS])
seed("S35")(lambda: [nominal_weights(shape("llama-3-8b")) / kv("llama-3-8b", n) for n in CONTEXTS])
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
    spec = shape("llama-2-13b")
    layouts = [plan_layout(shape("llama-2-13b", num_key_value_heads=heads).cache(2), block_tokens=1024)
               for heads in (40, 8)]
    return [room(spec, layout, 80 * 10**9 + layout.page_bytes, nominal_weights(spec)).max_rows(1024)
            for layout in layouts]


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


@seed("S87")
def transients_of_a_layer() -> list[float]:
    mlp = shape("llama-3-8b").layers[0].blocks[1][1]
    assert isinstance(mlp, MlpSpec)
    return [256 * mlp.intermediate_size * 2]


@seed("S61")
def attention_meets_the_linear_layers() -> list[float]:
    """Printed in both readings: the source counts no embeddings, the nominal reading all parameters."""
    spec = shape("llama-3-8b")
    tables = sum(p.num_elements for name, p in spec.params() if name in ("embed.weight", "head.weight"))
    fewer = spec.num_params - tables
    bare, all_of_them = (closed.quadratic_tokens(params, LLAMA3) for params in (fewer, spec.num_params))
    print(f"S61: {bare:.0f} tokens with {fewer:.4g} parameters (no embeddings), "
          f"{all_of_them:.0f} with all {spec.num_params:.4g}")
    assert all_of_them == pytest.approx(61_300, rel=0.001)
    return [bare]


@seed("S62")
def a_question_without_a_picture() -> list[float]:
    """Printed in both readings: FLOPs alone, and the floor, which must read the weights for 30 tokens too."""
    nominal, read = prompt_s(BACKBONE, 30), step_s(BACKBONE, 0)
    print(f"S62: {nominal * 1e3:.2f} ms by FLOPs alone; the floor is {max(nominal, read) * 1e3:.2f} ms: "
          f"30 tokens are too few to hide the reading of {2 * BACKBONE.num_params / 1e9:.3g} GB")
    assert max(nominal, read) == pytest.approx(4.4e-3, rel=0.01)
    return [nominal]


@pytest.mark.parametrize("identity", sorted(rows()))
def test_a_stated_number_comes_out(identity: str) -> None:
    row = rows()[identity]
    expected = [float(value) for value in row["value"].split("|")]
    found = CHECKS[identity]()
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if row["rel_tol"] == "min":
            assert ours >= theirs, (row["given"], ours, theirs)
        else:
            tolerance = float(row["rel_tol"]) + 1e-9
            assert math.isclose(ours, theirs, rel_tol=tolerance), (row["given"], ours, theirs)


def test_every_row_has_its_check() -> None:
    assert set(CHECKS) == set(rows())


def test_the_exact_floor_of_decode_is_below_the_nominal_one() -> None:
    """S32 counts all 8.03e9 parameters; what a step must read is 7 % less."""
    price = Price(uniform(shape("llama-3-8b")), H100, flops_per_s=BF16)
    assert price(decodes(1, 1)) == pytest.approx(step_s(LLAMA3, 0) * 7.505 / 8.030, rel=0.002)


def test_a_shape_is_read_off_its_description() -> None:
    """The closed forms' symbols are the config's: d is n_q * head_dim, and a cut cache is cut by n_kv."""
    assert (LLAMA3.width, LLAMA3.num_kv_heads, LLAMA3.group, LLAMA3.num_layers) == (4096, 8, 4, 32)
    assert closed.kv_bytes(LLAMA3, 8192, 2) == kv("llama-3-8b", 8192)
    latent = shape_of(shape("deepseek-v2"))
    assert (latent.kv_elements, latent.num_kv_heads) == (60 * 576, 1)
    assert shape_of(shape("qwen3-4b")).width == 32 * 128  # hidden_size is 2560
    windowed = shape_of(shape("mistral-7b-v0.1"))
    assert closed.kv_bytes(windowed, 32768, 2) > kv("mistral-7b-v0.1", 32768)
