"""Protects plans: their readings, their memory, what moves them, and refusals by name."""

from dataclasses import fields, replace

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.kv.manager import KVManager
from ridgeline.ledger.closed import waiting_s
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.planner.ask import (
    Ask,
    Pictures,
    Speculate,
    parse_link,
    parse_seconds,
    parse_speculate,
    parse_target,
)
from ridgeline.planner.labs.parts import Case
from ridgeline.planner.plan import Plan, little, plan
from ridgeline.planner.report import as_json, as_text
from ridgeline.planner.setup import Workshop
from ridgeline.spec.hardware import hardware

SHOP = Workshop()
BASE = Ask(model="llama-3-8b", gpu="h100", batch=16)
ASKS = {
    "plain": BASE, "tensor": replace(BASE, model="llama-3-70b", tp=4), "stages": replace(BASE, tp=2, pp=2),
    "experts": replace(BASE, model="qwen3-30b-a3b", tp=2, ep=4, dp=2, skew=0.8),
    "latents": replace(BASE, model="deepseek-v3", gpu="h200", gpus=8, weights="fp8"),
    "speculation": replace(BASE, speculate=Speculate(gamma=4, alpha=0.8, draft=0.05)),
    "prefix": replace(BASE, shared_prefix=1000, read_prefix_once=True), "hits": replace(BASE, prefix_hit=0.5),
    "apart": replace(BASE, disaggregate=True, link_bytes_per_s=50e9),
    "rate": replace(BASE, batch=None, rate=3.0), "packed": replace(BASE, weights="int4", kv="fp8"),
    "windows": replace(BASE, model="gpt-oss-20b"),
    "adapters": replace(BASE, max_loras=8, max_lora_rank=64),
}


def planned(ask: Ask) -> Plan:
    return plan(ask, SHOP)


@pytest.mark.parametrize("name", ASKS)
def test_a_floor_is_below_its_estimate_and_memory_sums_to_the_capacity(name: str) -> None:
    found = planned(ASKS[name])
    floor, estimate = found.exact, found.estimate
    assert 0 < floor.tpot_s <= estimate.tpot_s and 0 < floor.ttft_s <= estimate.ttft_s
    assert floor.e2e_s <= estimate.e2e_s and floor.output_tok_s >= estimate.output_tok_s
    assert found.sustained_tok_s[0] >= found.sustained_tok_s[1]
    assert found.steps.floor.mixed_s >= found.steps.floor.tpot_s
    terms = [getattr(found.memory, f.name) for f in fields(found.memory) if f.name != "capacity"]
    assert sum(terms) == pytest.approx(found.memory.capacity, abs=1) and min(terms) >= 0
    assert found.exact.fits == (found.batch <= found.exact.b_max)
    assert floor.output_tok_s <= floor.throughput_ceiling_tok_s * 1.0001
    assert floor.intensity <= floor.intensity_ceiling * 1.0001
    assert as_text(found).count("\n") > 20 and as_json(found)["fits"] is True


def test_the_readings_of_a_known_case() -> None:
    """The serving planner's defaults: nominal as the closed forms state them (TTFT 76.4 ms, TPOT 6.16 ms);
    the floor reads 7.50e9 parameters and projects one position."""
    found = planned(BASE)
    assert found.nominal.ttft_s == pytest.approx(76.4e-3, rel=0.005)
    assert found.nominal.tpot_s == pytest.approx(6.16e-3, rel=0.005)
    assert found.exact.tpot_s == pytest.approx((7.5e9 * 2 + 16 * 2176 * 131072) / 3.35e12, rel=0.005)
    assert found.exact.ttft_s < found.estimate.ttft_s < found.nominal.ttft_s
    assert found.exact.b_star == pytest.approx(295, rel=0.005)
    long = planned(replace(BASE, prompt=8000, output=192))
    assert (long.nominal.b_max, long.exact.binding_limit) == (57, "b_cross")


@pytest.mark.parametrize("name", ["plain", "tensor", "stages", "experts", "latents", "windows"])
def test_better_machines_are_never_slower(name: str) -> None:
    """More bandwidth, more FLOPs and faster links: no time grows; more memory: no batch shrinks."""
    ask = ASKS[name]
    device = hardware(ask.gpu)
    base = planned(ask)
    faster = {"bytes_per_s": device.bytes_per_s * 1.5, "links": {k: v * 2 for k, v in device.links.items()},
              "flops_per_s": {k: v * 1.5 for k, v in device.flops_per_s.items()}}
    for field, value in faster.items():
        other = plan(ask, Workshop(device=replace(device, **{field: value})))  # type: ignore[arg-type]
        for mine, theirs in ((base.exact, other.exact), (base.estimate, other.estimate)):
            assert theirs.tpot_s <= mine.tpot_s and theirs.ttft_s <= mine.ttft_s, field
    larger = plan(ask, Workshop(device=replace(device, marketed_bytes=2 * device.marketed_bytes)))
    assert larger.exact.b_max > base.exact.b_max
    assert larger.exact.max_context_tokens > base.exact.max_context_tokens


def test_what_each_knob_moves() -> None:
    base = planned(BASE)
    cache, int4 = planned(replace(BASE, kv="fp8")), planned(replace(BASE, weights="int4"))
    fp8, only = (planned(replace(BASE, weights="fp8", weight_only=only)) for only in (False, True))
    assert cache.exact.b_max >= 1.98 * base.exact.b_max and cache.exact.tpot_s < base.exact.tpot_s
    assert cache.exact.ttft_s == pytest.approx(base.exact.ttft_s, rel=0.01)
    assert int4.exact.tpot_s < 0.5 * base.exact.tpot_s
    assert int4.estimate.ttft_s > base.estimate.ttft_s  # unpacking is paid in prefill
    assert fp8.estimate.ttft_s < 0.62 * base.estimate.ttft_s and only.estimate.ttft_s > base.estimate.ttft_s
    assert fp8.exact.b_star == pytest.approx(base.exact.b_star, rel=0.1)
    assert only.exact.b_star == pytest.approx(base.exact.b_star / 2, rel=0.15)
    hit, logprobs = planned(ASKS["hits"]), planned(replace(BASE, prompt_logprobs=True))
    assert hit.exact.ttft_s < 0.6 * base.exact.ttft_s and hit.exact.tpot_s == base.exact.tpot_s
    assert logprobs.exact.ttft_s > base.exact.ttft_s
    assert logprobs.memory.activations > base.memory.activations
    assert planned(ASKS["prefix"]).exact.b_max > base.exact.b_max


def test_images_become_tokens_encoder_time_and_cache() -> None:
    """13 tiles of 27 x 27 pooled 2 x 2: 2,548 tokens as tilers count, 2,369 by the area; the encoder's 8.4e12
    FLOP take 21 ms at 40 % of an H100's peak and 13 crops 15.6 ms of a processor."""
    named = Pictures(images=1, tiles=13, encoder="so400m", pooling=4)
    found = planned(replace(BASE, model="qwen2.5-7b", prompt=30, pictures=named))
    seen = as_json(found)["vision"]
    assert (seen["patch_tokens"], seen["visual_tokens"], seen["prompt_tokens"]) == (9477, 2548, 2578)
    assert seen["encoder_s"]["estimate"] == pytest.approx(21e-3, rel=0.02)
    assert seen["preprocess_s"] == pytest.approx(15.6e-3)
    text = planned(replace(BASE, model="qwen2.5-7b", prompt=2578))
    assert found.estimate.ttft_s == pytest.approx(text.estimate.ttft_s + seen["preprocess_s"]
                                                  + seen["encoder_s"]["estimate"])
    assert found.exact.kv_bytes_per_sequence == text.exact.kv_bytes_per_sequence
    assert found.memory.weights - text.memory.weights == 800e6
    own = planned(replace(BASE, model="molmo-7b-d", prompt=30, pictures=Pictures(images=2)))
    assert as_json(own)["vision"]["encoder"] == "the model's own" and "images (" in as_text(own)
    assert own.setup.ask.prompt == 30 + as_json(own)["vision"]["visual_tokens"]


def test_an_encoder_of_any_size_sees_an_image_whole() -> None:
    """Qwen2.5-VL: 37 squares of 28 pixels a side at 1024 pixels, four patches a token."""
    pictures = Pictures(images=2)
    found = planned(replace(BASE, model="qwen2.5-vl-7b", prompt=30, pictures=pictures))
    sight = found.setup.sight
    assert sight is not None and (sight.tiles, sight.patches, sight.tokens) == (2, 10952, 2738)
    assert any("1024 x 1024 pixels" in one for one in found.setup.choices)
    one = planned(replace(found.ask, pictures=replace(pictures, images=1, tiles=37**2))).setup.sight
    assert one is not None and one.flops * 2 == sight.flops and not one.note


def test_prompts_in_waves_delay_tokens_and_in_bursts_first_tokens_too() -> None:
    steady, waves, bursts = (plan(replace(BASE, arrivals=name), SHOP).steps.estimate
                             for name in ("steady", "waves", "bursts"))
    others_s, late_s = 15 * steady.prefill_s, 6 * steady.prefill_s  # four steps: 16 (4 - 1) / 8 prompts
    assert waves.ttft_s == steady.ttft_s  # the assumed mix lets decodes wait for all
    assert waves.mixed_s - waves.tpot_s == pytest.approx(others_s / 256)
    assert bursts.mixed_s - bursts.tpot_s == pytest.approx(late_s / 256)
    assert bursts.ttft_s - steady.ttft_s == pytest.approx(others_s - late_s)


def test_weights_that_are_unpacked_cost_time_in_every_reading() -> None:
    """By the closed form a prompt pays, as in the labs; a step reads them at a share of the bandwidth."""
    packed = replace(BASE, weights="int4")
    lab = Case(model="llama-3-8b", gpu="h100-sxm", weights="int4")
    assert plan(packed, SHOP).nominal.ttft_s == pytest.approx(lab.prompt_s(2048))
    slow = Workshop(Efficiency(unpack=0.5))
    assert plan(packed, slow).steps.estimate.tpot_s > 1.5 * plan(packed, SHOP).steps.estimate.tpot_s
    assert plan(BASE, slow).steps.estimate.tpot_s == plan(BASE, SHOP).steps.estimate.tpot_s


def test_a_rate_keeps_its_batch_in_flight() -> None:
    """Little's law both ways: the batch that a rate needs completes at least that rate, one lane fewer does
    not; a rate beyond the memory is infeasible by name."""
    found = planned(ASKS["rate"])
    assert found.batch / (256 * found.steps.estimate.mixed_s) >= 3.0
    fewer = planned(replace(BASE, batch=found.batch - 1))
    assert fewer.batch / (256 * fewer.steps.estimate.mixed_s) < 3.0
    over = planned(replace(BASE, batch=None, rate=1000.0))
    assert not over.feasible and "1000 requests/s are more than it completes" in over.why


def test_a_loaded_prompt_waits_and_in_flight_is_rate_times_stay() -> None:
    """Pollaczek and Khinchine with constant service: half of rho s / (1 - rho); no end past the capacity."""
    assert waiting_s(2.0, 0.25) == pytest.approx(0.125) and waiting_s(4.0, 0.25) == float("inf")
    law = little(planned(ASKS["rate"]))
    assert law["in_flight"] == pytest.approx(3.0 * law["stay_s"]) and law["wait_s"] > 0
    assert law["ttft_loaded_s"] > planned(ASKS["rate"]).estimate.ttft_s


def test_what_drafts_prefixes_and_pools_do_is_said() -> None:
    for name, says in (("speculation", "3.36 tokens a step"), ("prefix", "read once"), ("apart", "to send")):
        assert any(says in note for note in as_json(planned(ASKS[name]))["notes"]), name


def test_targets_decide_what_is_feasible_and_the_best_batch_for_goodput() -> None:
    met, missed = (planned(replace(BASE, tpot_s=target)) for target in (0.03, 0.01))
    assert met.feasible and not missed.feasible and "TPOT is" in missed.why
    best = met.goodput_batch
    assert best is not None and planned(replace(BASE, tpot_s=0.03, batch=best)).feasible
    assert not planned(replace(BASE, tpot_s=0.03, batch=best + 1)).feasible
    assert planned(BASE).goodput_batch is None


@pytest.mark.parametrize("name", ["plain", "latents", "windows", "prefix"])
def test_the_allocator_holds_as_many_sequences_as_the_plan_promises(name: str) -> None:
    """In a small memory, so that it is filled: B_max sequences are resident, one more is not. With a shared
    prefix the manager shares what the plan counts once."""
    tp = 8 if name == "latents" else None
    ask = replace(ASKS[name], prompt=1500, output=100, gpus=None, tp=tp)
    room = planned(ask).setup.rooms[0]
    arena = 6 * (room.layout.pages_for(1600) * room.layout.page_bytes + room.row_bytes)
    setup = planned(replace(ask, memory_bytes=int(room.fixed + arena))).setup
    room, most = setup.rooms[0], setup.max_rows()
    manager = KVManager(room.layout, room.num_pages(most), prefix_caching=bool(ask.shared_prefix))
    prefix = list(range(ask.shared_prefix))

    def resident(seq: int) -> bool:
        tokens = prefix + [seq + 5000] * (1600 - len(prefix))
        known = manager.open(seq, tokens)
        for end in (*range(known + 200, 1600, 200), 1600):
            if not manager.reserve(seq, end):
                return False
            manager.commit(seq, end, tokens)
        return True

    assert most > 2 and all(resident(seq) for seq in range(most))
    assert name == "windows" or not resident(most)  # a window may lie on one page less than promised


@pytest.mark.parametrize(("changes", "says"), [
    ({"batch": -1}, "--batch is -1: it must be above 0"), ({"rate": 2.0}, "--batch and --rate contradict"),
    ({"shared_prefix": -5}, "--shared-prefix is -5"), ({"prefix_hit": 1.0}, "--prefix-hit is 1"),
    ({"shared_prefix": 2048}, "is not below --prompt 2048"),
    ({"shared_prefix": 9, "prefix_hit": 0.1}, "contradict"), ({"kv": "fp4"}, "--kv fp4"),
    ({"link_bytes_per_s": 1e9}, "--link is of --disaggregate"),
    ({"weights": "int3"}, "use bf16, fp8, int8, int4"), ({"memory_bytes": -80}, "--memory is -80"),
    ({"weight_only": True}, "--weight-only needs --weights"), ({"tp": 3}, "sizes that work"),
    ({"gpus": 3, "tp": 2}, "--gpus 3 and TP 2"), ({"gpu": "h101"}, "did you mean 'h100'"),
    ({"model": "llama-3-8"}, "llama-3-8b"), ({"gpu": "l4", "tp": 16}, "network link"),
    ({"tpot_s": -1.0}, "--tpot is -1"), ({"pictures": Pictures(images=1)}, "--images needs --vision-encoder"),
    ({"pictures": Pictures(images=1, encoder="so400m")}, "--tiles is missing"),
    ({"pictures": Pictures(images=1, encoder="so401m", tiles=1)}, "did you mean 'so400m'"),
    ({"skew": 0.5}, "--skew 0.5 is of routed experts"),
])
def test_what_cannot_be_is_refused_by_name(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(replace(BASE, **changes), SHOP)  # type: ignore[arg-type]


def test_units_are_read_as_written() -> None:
    assert parse_seconds("500ms") == 0.5 and parse_seconds("0.5s") == parse_seconds("0.5") == 0.5
    assert parse_link("50GB/s") == parse_link("400Gb/s") == 50e9 and parse_link("1GiB/s") == 2**30
    assert parse_speculate("gamma=2") == Speculate(gamma=2, alpha=0.8, draft=0.05)
    for bad in ("gamma=x", "beta=1", "alpha=2"):
        with pytest.raises(ConfigError, match="--speculate"):
            parse_speculate(bad)
    assert parse_target("0.5") == parse_target("500ms") == 0.5 and parse_target("20s") == 20
    with pytest.raises(ConfigError, match="write 500ms"):
        parse_target("500")
    for bad in ("12parsecs", "fast"):
        with pytest.raises(ConfigError, match="cannot read"):
            parse_seconds(bad)


def test_adapters_take_memory_that_sequences_had() -> None:
    """Two bytes for each number of low-rank pairs at every weight of a device's share, where those of joined
    linear layers (q, k and v; gate and up) are as wide as all of them, and the batch that fits shrinks; a
    rank alone is idle, and a model whose adapters are not described is refused."""
    hidden, inner, kv, layers = 4096, 14336, 1024, 32
    ends = 3 * (hidden + hidden + 2 * kv) + 2 * hidden + 2 * (hidden + 2 * inner) + (inner + hidden)
    with_them, without = planned(replace(BASE, max_loras=4, max_lora_rank=32)), planned(BASE)
    assert with_them.memory.adapters == 4 * 2 * 32 * layers * ends
    assert without.exact.b_max > with_them.exact.b_max and without.memory.adapters == 0
    cut = planned(replace(BASE, max_loras=4, max_lora_rank=32, tp=2)).memory.adapters
    assert with_them.memory.adapters / 2 < cut < with_them.memory.adapters
    assert "adapters" in as_text(with_them) and "adapters  " not in as_text(without)
    with pytest.raises(ConfigError, match="--max-lora-rank needs"):
        replace(BASE, max_lora_rank=8)
    with pytest.raises(ConfigError, match="falcon models stand is not described"):
        planned(replace(BASE, model="falcon-180b", gpus=8, max_loras=1))
