"""Protects the agreement of ledger and allocator: the bytes that a plan promises a sequence are the
pages that the KV manager takes for it."""

from dataclasses import replace

import pytest

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.kv.manager import KVManager
from ridgeline.ledger.memory import needed_cache_bytes, reserved_cache_bytes
from ridgeline.models.families import FAMILIES, model_spec
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.model import LayerSpec
from tests.features import each_running
from tests.ledger.shapes import room, shape
from tests.oracle.cases import CASES
from tests.oracle.reference import reference_config


@pytest.mark.parametrize("num_tokens", [1, 1000, 4096])
@pytest.mark.parametrize(
    "name", ["smollm2-135m", "llama-3-8b", "mistral-7b-v0.1", "phi-3-mini", "deepseek-v3"])
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


@pytest.mark.parametrize("family", each_running(FAMILIES, "cache as planned"))
def test_every_family_takes_what_was_planned(family: str) -> None:
    """Three lengths, within and beyond the windows, which lie on a page more or less."""
    spec = model_spec(reference_config(family, **CASES[family][1]).to_dict())
    layout = plan_layout(spec.cache(2), block_tokens=8)
    windowed = sum(group.window_tokens is not None for group in layout.groups)
    for num_tokens in (1, 50, 300):
        manager, tokens = KVManager(layout, num_pages=2000), list(range(num_tokens))
        manager.open(1, tokens)
        for end in (*range(8, num_tokens, 8), num_tokens):
            assert manager.reserve(1, end)
            manager.commit(1, end, tokens)
        planned = reserved_cache_bytes(layout, num_tokens) // layout.page_bytes
        assert planned - windowed <= manager.num_used_pages <= planned


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v2"])
@pytest.mark.parametrize("num_tokens", [1, 1000, 4096])
def test_layers_that_share_fall_by_the_factor(num_tokens: int, name: str) -> None:
    """Cross-layer attention by two, of keys and values or of latents: half of the pages of the same model
    without, planned and held."""
    plain = shape(name)
    layers = []
    for i, layer in enumerate(plain.layers):
        (block, attention), feed = layer.blocks
        assert isinstance(attention, AttentionSpec | MlaSpec)
        mine = replace(attention, reads_layer=i - 1) if i % 2 else attention
        layers.append(LayerSpec(blocks=((block, mine), feed)))
    shared = replace(plain, layers=tuple(layers))
    assert 2 * needed_cache_bytes(shared, num_tokens, 2) == needed_cache_bytes(plain, num_tokens, 2)
    held = []
    for spec in (plain, shared):
        layout = plan_layout(spec.cache(2), block_tokens=16)
        manager = KVManager(layout, num_pages=2000)
        manager.open(1, list(range(num_tokens)))
        assert manager.reserve(1, num_tokens)
        held.append(manager.num_used_pages * layout.page_bytes)
        assert held[-1] == reserved_cache_bytes(layout, num_tokens)
    assert held[0] == 2 * held[1]


def test_as_many_sequences_fit_as_were_planned() -> None:
    spec = shape("smollm2-135m")
    layout = plan_layout(spec.cache(2), block_tokens=16)
    planned = room(spec, layout, 64 * 10**6)
    manager = KVManager(layout, planned.num_pages(0), prefix_caching=False)
    for seq in range(planned.max_rows(500)):
        manager.open(seq, [seq] * 500)
        assert manager.reserve(seq, 500)
    manager.open(9999, [1] * 500)
    assert not manager.reserve(9999, 500)


@pytest.mark.parametrize(("name", "window"), [("gemma-3-4b", 1024), ("gpt-oss-20b", 128)])
def test_windowed_layers_take_the_same_bytes_at_any_length(name: str, window: int) -> None:
    """Three lengths past the window: full layers grow with the text, windowed ones hold their last window
    only, what the plan promises is what is held, and a hit needs no more of them."""
    spec, seen = shape(name), []
    layout = plan_layout(spec.cache(2), block_tokens=16)
    windowed = next(i for i, group in enumerate(layout.groups) if group.window_tokens == window)
    tokens = list(range(3 * window))
    manager = KVManager(layout, num_pages=20_000)
    manager.open(1, tokens)
    for end in range(8, len(tokens) + 1, 8):
        assert manager.reserve(1, end)
        manager.commit(1, end, tokens)
        if end in (window + 8, 2 * window + 8, 3 * window):
            held = [sum(manager.page_of(1, i, at) > 0 for at in range(0, end, group.tokens_per_page))
                    for i, group in enumerate(layout.groups)]
            assert sum(held) == manager.num_used_pages
            assert abs(sum(held) - layout.pages_for(end)) <= 1  # a window may lie on one page less
            seen.append(held[windowed])
    assert max(seen) - min(seen) <= 1
    manager.release(1)
    whole = max(group.tokens_per_page for group in layout.groups)
    assert manager.open(2, [*tokens, 1]) == len(tokens) // whole * whole
