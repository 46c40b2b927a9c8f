"""Protects the verdict "does it fit": bytes by term, the rounding to pages, and the text of a refusal."""

import pytest

from ridgeline.ledger.memory import (
    needed_cache_bytes,
    reserved_cache_bytes,
    weights_bytes,
)
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.quant import FORMATS, WeightPlan
from tests.ledger.shapes import room, shape

BF16 = WeightPlan.uniform("bfloat16")


@pytest.mark.parametrize(("changes", "num_bytes"), [
    (dict(num_hidden_layers=36, hidden_size=2560, head_dim=128), 147456),
    (dict(num_hidden_layers=32, hidden_size=4096), 131072),
    (dict(num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3), 23040)])
def test_kv_bytes_a_token_follow_head_size_and_kv_heads(changes: dict[str, object], num_bytes: int) -> None:
    """Case C-27: head_dim apart from hidden / heads, and fewer KV heads than heads."""
    assert needed_cache_bytes(shape("llama-3-8b", **changes), 1, 2) == num_bytes


def test_a_tied_embedding_counts_once_unless_the_head_is_held_apart() -> None:
    spec = shape("smollm2-135m")
    assert weights_bytes(spec, BF16) == 134_515_008 * 2
    apart = WeightPlan(linear=FORMATS["bfloat16"], head=FORMATS["int8_row"], embed=FORMATS["bfloat16"],
                       other=FORMATS["bfloat16"])
    assert weights_bytes(spec, apart) == 134_515_008 * 2 + 49152 * (576 + 2)


def test_a_window_caps_what_a_sequence_needs_and_reserves() -> None:
    spec = shape("mistral-7b-v0.1")
    layout = plan_layout(spec.cache(2), block_tokens=16)
    assert needed_cache_bytes(spec, 100_000, 2) == 4096 * 131072
    assert reserved_cache_bytes(layout, 100_000) == (4096 // 16 + 1) * 16 * 131072


@pytest.mark.parametrize("num_tokens", [1, 16, 17, 1000, 8192])
def test_the_reserve_is_the_need_rounded_up_to_pages(num_tokens: int) -> None:
    spec = shape("llama-3-8b")
    layout = plan_layout(spec.cache(2), block_tokens=16)
    need, reserve = needed_cache_bytes(spec, num_tokens, 2), reserved_cache_bytes(layout, num_tokens)
    assert 0 <= reserve - need < layout.page_bytes


def test_a_budget_is_divided_without_a_gap() -> None:
    """The planner's room of a device: what fits is at most a page short of the budget."""
    spec = shape("smollm2-135m")
    layout = plan_layout(spec.cache(2), block_tokens=16)
    one = room(spec, layout, 10**9, weights_bytes(spec, BF16), 10**8)
    assert 0 <= one.capacity - one.fixed - one.num_pages(0) * layout.page_bytes < layout.page_bytes
    most = one.max_rows(1000)
    assert one.fits(1000, most) and not one.fits(1000, most + 1)
    held = one.held(1000, most)
    assert held.weights + held.kv_needed + held.kv_rounding + held.workspace + held.spare == held.capacity

