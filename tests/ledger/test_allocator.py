"""Protects the agreement of ledger and allocator: the bytes that a plan promises a sequence are the
pages that the KV manager takes for it."""

import pytest

from ridgeline.kv.manager import KVManager
from ridgeline.ledger.memory import plan_memory, reserved_cache_bytes
from ridgeline.spec.cache import plan_layout
from tests.ledger.shapes import shape


@pytest.mark.parametrize("num_tokens", [1, 1000, 4096])
@pytest.mark.parametrize("name", ["smollm2-135m", "llama-3-8b", "mistral-7b-v0.1", "phi-3-mini"])
def test_a_sequence_takes_the_pages_that_were_planned(name: str, num_tokens: int) -> None:
    layout = plan_layout(shape(name).cache(2), block_tokens=16)
    manager = KVManager(layout, num_pages=2000)
    tokens = list(range(num_tokens))
    manager.open(1, tokens)
    for end in (*range(256, num_tokens, 256), num_tokens):
        assert manager.reserve(1, end)
        manager.commit(1, end, tokens)
    held = manager.num_used_pages * layout.page_bytes
    assert held <= reserved_cache_bytes(layout, num_tokens)
    windows = {group.window_tokens for group in layout.groups}
    if windows == {None}:
        assert held == reserved_cache_bytes(layout, num_tokens)


def test_as_many_sequences_fit_as_were_planned() -> None:
    layout = plan_layout(shape("smollm2-135m").cache(2), block_tokens=16)
    plan = plan_memory(budget_bytes=64 * 10**6, weights_bytes=0, workspace_bytes=0, layout=layout)
    manager = KVManager(layout, plan.num_pages, prefix_caching=False)
    for seq in range(plan.max_sequences(500)):
        manager.open(seq, [seq] * 500)
        assert manager.reserve(seq, 500)
    manager.open(9999, [1] * 500)
    assert not manager.reserve(9999, 500)
