"""Protects the contract of a description with what runs: its tensors are those that the block's module takes,
its products are those that torch counts, the pairs it prices are those a mask leaves, and what it says a
sequence keeps is what the allocator gives."""

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.sparse.spec import SparseSpec
from ridgeline.blocks.table import BLOCKS
from ridgeline.kv.manager import KVManager
from ridgeline.ledger.account import account
from ridgeline.ledger.memory import needed_cache_bytes, reserved_cache_bytes
from ridgeline.ledger.sums import Summer
from ridgeline.models.checkpoint import run_shapes
from ridgeline.models.families import FAMILIES, model_spec
from ridgeline.models.shapes import SHAPES
from ridgeline.nn.build import build_model
from ridgeline.nn.linear import BlockParts
from ridgeline.spec.block import BlockSpec
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.model import LayerSpec, ModelSpec
from ridgeline.spec.quant import WeightPlan
from tests.helpers import (
    tiny_capped,
    tiny_latent,
    tiny_mixture,
    tiny_shared,
    tiny_shared_latent,
    tiny_spec,
    tiny_states,
)
from tests.ledger.shapes import uniform
from tests.ledger.test_flops import counted_flops

# one published model a family that runs; the tiny ones have what no published model of theirs has
FAMILY_SHAPES = {str(SHAPES[name]["model_type"]): SHAPES[name] for name in reversed(run_shapes())} | {
    "gemma4_text": {  # its published models are described only
        "model_type": "gemma4_text", "vocab_size": 1000, "hidden_size": 640, "intermediate_size": 2048,
        "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1,
        "num_kv_shared_layers": 6,
        "hidden_size_per_layer_input": 0},
    "mistral_large4": {  # the defaults of its config in transformers with an index that leaves nothing out
        "model_type": "mistral_large4", "text_config": {
            "vocab_size": 204800, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 72,
            "moe_intermediate_size": 6144, "num_attention_heads": 64, "n_routed_experts": 128,
            "num_experts_per_tok": 4, "max_position_embeddings": 2048, "index_topk": 2048,
            "kv_source_layers": [35 if i > 35 and i % 4 == 3 else i for i in range(72)]}}}
TINY = {"mixture": tiny_mixture, "capped": tiny_capped, "latent": tiny_latent, "shared": tiny_shared,
        "shared latent": tiny_shared_latent,
        "state": lambda: tiny_states("state"), "delta": lambda: tiny_states("delta")}


class Taken(dict[str, Tensor]):
    """Weights of a block that remember which were asked for; those of large ones are on the meta device."""

    def __init__(self, block: BlockSpec) -> None:
        large = any(param.num_elements > 10**5 for param in block.params())
        super().__init__({param.name: torch.empty(param.shape, device="meta" if large else "cpu")
                          for param in block.params()})
        self.names: set[str] = set()

    def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
        self.names.add(name)
        return super().get(name)


def kinds_of_blocks() -> Iterator[tuple[str, BlockSpec]]:
    """Blocks that differ in kind or tensors, of the tiny models and the published ones; no published stack of
    experts."""
    specs = [make() for make in TINY.values()] + [model_spec(config) for config in FAMILY_SHAPES.values()]
    seen: set[tuple[str, ...]] = set()
    for spec in specs:
        for layer in spec.layers:
            for _, block in layer.blocks:
                tensors = (block.kind, *(param.name for param in block.params()))
                if tensors not in seen and (block.kind != "moe" or spec.hidden_size < 100):
                    seen.add(tensors)
                    yield spec.family, block


def test_a_module_takes_every_tensor_of_its_description_and_no_other() -> None:
    """At the published sizes too: on the meta device nothing is allocated."""
    rooms = set()
    for family, block in kinds_of_blocks():
        taken = Taken(block)
        BLOCKS[block.kind](block, BlockParts(taken, ""))
        assert taken.names == {param.name for param in block.params()}, (family, block.kind)
        rooms.add(block.kind)
    assert rooms == set(BLOCKS)


@pytest.mark.parametrize("name", ["mixture", "capped", "shared", "latent", "shared latent", "state", "delta"])
def test_products_are_what_torch_counts(name: str) -> None:
    """Every plain product of a prompt, routers and gates included; attention is counted by pairs, a scan by
    the recurrence. A prompt's latents are made keys and values by a product too."""
    spec, num_tokens = TINY[name](), 23
    bill = uniform(spec, "float32")
    sums = Summer(bill.windows, bill.layers_by_router(), few=bill.few).sums([0], [num_tokens], 1)
    ours = sum(line.flops for line in bill.at(sums) if line.op not in ("attention", "scan"))
    latents = [block for layer in spec.layers for _, block in layer.blocks if isinstance(block, MlaSpec)]
    made = sum(2 * num_tokens * block.up_size * block.latent_dim for block in latents)
    assert ours + made == counted_flops(spec, num_tokens)


def test_an_index_prices_the_pairs_that_a_mask_leaves() -> None:
    """All visible pairs are scored, the best top_k of each query attended to: counted one by one."""
    latent = next(block for _, block in tiny_latent().layers[0].blocks if isinstance(block, MlaSpec))
    same = {field.name: getattr(latent, field.name) for field in fields(latent)}
    sparse = SparseSpec(**same, index_heads=3, index_dim=8, top_k=5)
    start, count = 4, 9
    sees = [t + 1 for t in range(start, start + count)]
    scored, attended = sum(sees), sum(min(keys, 5) for keys in sees)
    spec = replace(tiny_spec(num_layers=1), layers=(LayerSpec(blocks=(("attn", sparse),)),))
    bill = account(spec, weight_bytes=WeightPlan.uniform("bfloat16").num_bytes, cache_element_bytes=2)
    lines = {line.op: line for line in bill.at(Summer(bill.windows).sums([start], [count], 0))}
    matrices = 3 * 8 * 24 + 8 * 32 + 3 * 32
    assert lines["index"].flops == 2 * count * matrices + scored * 3 * (2 * 8 + 2)
    up = 2 * count * latent.up_size * latent.latent_dim
    assert lines["attention"].flops == up + attended * 4 * 2 * (2 * 16 + 4)
    assert needed_cache_bytes(spec, 1, 2) == 2 * (16 + 4 + 8)


def test_every_family_that_runs_has_a_model_here() -> None:
    """Ministral is Mistral under another name."""
    assert set(FAMILIES) - set(FAMILY_SHAPES) == {"ministral"}


@pytest.mark.parametrize("family", FAMILY_SHAPES)
def test_what_a_sequence_keeps_is_what_the_allocator_gives(family: str) -> None:
    """At three lengths: the pages held are those promised (a window may lie on one page less), and they hold
    what the model needs."""
    spec = model_spec(FAMILY_SHAPES[family])
    layout = plan_layout(spec.cache(2), block_tokens=16)
    for num_tokens in (1, 300, 5000):
        manager = KVManager(layout, num_pages=20_000)
        tokens = list(range(num_tokens))
        manager.open(1, tokens)
        for end in (*range(1000, num_tokens, 1000), num_tokens):
            assert manager.reserve(1, end)
            manager.commit(1, end, tokens)
        held, promised = manager.num_used_pages, layout.pages_for(num_tokens)
        windows = sum(group.window_tokens is not None for group in layout.groups)
        assert promised - windows <= held <= promised
        assert reserved_cache_bytes(layout, num_tokens) == promised * layout.page_bytes
        assert needed_cache_bytes(spec, num_tokens, 2) <= promised * layout.page_bytes


def test_a_described_block_is_not_built() -> None:
    """Protects: a spec made by hand cannot reach a module that would leave out what it says."""
    spec: ModelSpec = tiny_spec(num_layers=1)
    (name, attention), mlp = spec.layers[0].blocks
    tied = replace(attention, pre_norm=False)  # type: ignore[type-var]
    weights = {full: torch.empty(param.shape) for full, param in spec.params()}
    with pytest.raises(Exception, match="attn is described for planning, not run yet"):
        build_model(replace(spec, layers=(LayerSpec(blocks=((name, tied), mlp)),)), weights, torch.float32)
    assert np.isfinite(needed_cache_bytes(spec, 10, 2))
