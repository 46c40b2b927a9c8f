"""Protects the account: what a step must compute and move, against numbers known from outside."""

import pytest

from ridgeline.ledger.account import Account, account
from ridgeline.ledger.sums import Summer
from ridgeline.spec.cost import StepSums
from ridgeline.spec.quant import FORMATS, WeightPlan
from tests.ledger.shapes import Step, decodes, shape, uniform


def sums_of(acct: Account, step: Step) -> StepSums:
    return Summer(acct.windows).sums(step.start, step.count, step.num_sampled)


def total(acct: Account, step: Step, what: str) -> float:
    return sum(getattr(line, what) for line in acct.at(sums_of(acct, step)))


@pytest.mark.parametrize(("name", "num_params"), [
    ("llama-3-8b", 8_030_261_248), ("llama-2-7b", 6_738_415_616), ("llama-2-13b", 13_015_864_320),
    ("smollm2-135m", 134_515_008), ("qwen2.5-7b", 7_615_616_512), ("qwen3-0.6b", 596_049_920),
    ("mistral-7b-v0.1", 7_241_732_096), ("mixtral-8x7b", 46_702_792_704), ("qwen3-30b-a3b", 30_532_122_624),
    ("qwen3-235b-a22b", 235_093_634_560), ("phi-3-mini", 3_821_079_552)])
def test_parameters_are_the_published_ones(name: str, num_params: int) -> None:
    assert shape(name).num_params == num_params


def test_decode_reads_what_decode_needs() -> None:
    """Llama-3-8B: the embedding is a gather, so a step reads 7.50e9 parameters, not 8.03e9."""
    acct = uniform(shape("llama-3-8b"))
    gather = 4096 * 2
    kv = 131072
    read = total(acct, decodes(1, 8192), "read_bytes")
    assert read == (8_030_261_248 - 128256 * 4096) * 2 + gather + 8192 * kv
    assert total(acct, decodes(1, 8192), "written_bytes") == kv


def test_a_mixture_reads_the_experts_that_its_tokens_choose() -> None:
    """Mixtral 8x7B, and E (1 - (1 - k/E)^B) of its 8 experts a layer; each is read once."""
    acct = uniform(shape("mixtral-8x7b"))
    expert, layers = 3 * 4096 * 14336 * 2, 32
    rest = 46_702_792_704 * 2 - layers * 8 * expert - 32000 * 4096 * 2
    rest += layers * 4096 * 8 * 2  # the router stays float32
    for batch, distinct in ((1, 2.0), (2, 3.5), (64, 8 * (1 - 0.75**64))):
        read = total(acct, decodes(batch, 1), "read_bytes")
        cached = batch * (4096 * 2 + 131072)  # a row of the embedding, and its keys and values
        assert read - cached == pytest.approx(rest + layers * distinct * expert, rel=1e-12)


def test_decode_flops_are_two_a_weight_and_four_a_cached_number() -> None:
    spec = shape("llama-3-8b")
    matrices = sum(p.num_elements for name, p in spec.params() if p.role == "linear")
    flops = total(uniform(spec), decodes(4, 1000), "flops")
    assert flops == 4 * (2 * matrices + 4 * 1000 * 32 * 32 * 128)


def test_prefill_projects_only_the_last_position() -> None:
    acct = uniform(shape("llama-3-8b"))
    whole, silent = Step([(0, 512)]), Step([(0, 512)], num_sampled=0)
    head = 128256 * 4096
    assert total(acct, whole, "flops") - total(acct, silent, "flops") == 2 * head
    assert total(acct, whole, "read_bytes") - total(acct, silent, "read_bytes") == 2 * (head + 4096)


@pytest.mark.parametrize(("heads", "kv_heads", "intensity"), [(8, 8, 1), (8, 2, 4), (32, 4, 8), (32, 1, 32)])
def test_decode_attention_is_as_intense_as_its_grouping(heads: int, kv_heads: int, intensity: int) -> None:
    """S25: 2 g / s FLOP a cache byte."""
    spec = shape("llama-3-8b", num_attention_heads=heads, num_key_value_heads=kv_heads)
    acct = uniform(spec)
    (line,) = (x for x in acct.at(sums_of(acct, decodes(3, 777))) if x.op == "attention")
    assert line.flops / line.read_bytes == intensity


def test_equal_layers_fold_and_windows_do_not() -> None:
    acct = uniform(shape("llama-3-8b"))
    assert [(x.op, x.count) for x in acct.lines] == [
        ("embed", 1), ("qkv", 32), ("attention", 32), ("out", 32), ("gate_up", 32), ("down", 32), ("head", 1)]
    assert acct.windows == (None,)
    mixed = uniform(shape("qwen2.5-0.5b", use_sliding_window=True, sliding_window=4096, max_window_layers=4))
    attention = {x.count: {term[1] for term, _ in x.flops} for x in mixed.lines if x.op == "attention"}
    assert attention == {4: {None}, 20: {4096}}


def test_a_window_bounds_what_is_read() -> None:
    acct = uniform(shape("mistral-7b-v0.1"))
    assert total(acct, decodes(1, 20000), "read_bytes") == total(acct, decodes(1, 4096), "read_bytes")


def test_packed_weights_read_packed_bytes() -> None:
    """SmolLM2 as it runs on a CPU: 4-bit blocks, an int8 head beside the embedding that it is tied to."""
    spec = shape("smollm2-135m")
    plan = WeightPlan(linear=FORMATS["q4_g32"], head=FORMATS["int8_row"], embed=FORMATS["bfloat16"],
                      other=FORMATS["float32"])
    acct = account(spec, weight_bytes=plan.num_bytes, cache_element_bytes=2)
    linear = sum(p.num_elements for _, p in spec.params() if p.role == "linear")
    norms = sum(p.num_elements for _, p in spec.params() if p.role == "norm")
    read = total(acct, decodes(1, 1), "read_bytes")
    assert read == linear * 5 / 8 + 49152 * (576 + 2) + norms * 4 + 576 * 2 + 23040


def test_prompts_that_end_early_owe_the_last_feed_forward_of_projected_positions() -> None:
    spec = shape("llama-3-8b")
    whole, early = (account(spec, weight_bytes=lambda _, param: 2.0 * param.num_elements, ends_early=early,
                            cache_element_bytes=2) for early in (False, True))
    prompt, decode = Step([(0, 512)]), Step([(511, 1)])
    feed_forward = 2 * 3 * 4096 * 14336
    assert total(whole, prompt, "flops") - total(early, prompt, "flops") == 511 * feed_forward
    assert total(whole, decode, "flops") == total(early, decode, "flops")
    assert total(whole, prompt, "read_bytes") == total(early, prompt, "read_bytes")
