"""Protects the ledger's terms of recurrent states: the bytes held are those planned at any length, a state is
read and written once a step and row whatever the context, and snapshots have a number of bytes."""

import pytest

from ridgeline.kv.manager import KVManager
from ridgeline.ledger.memory import needed_cache_bytes, reserved_cache_bytes, snapshot_bytes
from ridgeline.ledger.sums import Summer
from ridgeline.models.families import model_spec
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.model import ModelSpec
from tests.ledger.shapes import decodes, uniform

ENDS = {"bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16", "vocab_size": 50288,
        "num_hidden_layers": 24}
MODELS = {
    "mamba2": {"hidden_size": 768, "num_heads": 24, "head_dim": 64, "state_size": 128, "n_groups": 1},
    "bamba": {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8,
              "num_key_value_heads": 2, "mamba_n_heads": 32, "mamba_d_head": 64, "mamba_d_state": 128,
              "attn_layer_indices": [9, 18]},
    "qwen3_5_text": {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8,
                     "num_key_value_heads": 2, "head_dim": 128, "linear_num_key_heads": 4,
                     "linear_num_value_heads": 8},
}
# tail and state of one layer in float32, by hand
LAYER_BYTES = {"mamba2": 4 * (24 * 64 * 128 + 3 * (1536 + 256)),
               "bamba": 4 * (32 * 64 * 128 + 3 * (2048 + 256)),
               "qwen3_5_text": 4 * (8 * 128 * 128 + 3 * 2048)}
LAYERS = {"mamba2": 24, "bamba": 22, "qwen3_5_text": 18}


def spec_of(name: str) -> ModelSpec:
    return model_spec({"model_type": name} | ENDS | MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_takes_the_pages_that_were_planned(name: str) -> None:
    spec = spec_of(name)
    layout = plan_layout(spec.cache(2), block_tokens=16)
    for num_tokens in (1, 1000, 4096):
        manager = KVManager(layout, num_pages=5000)
        tokens = list(range(num_tokens))
        manager.open(1, tokens)
        assert manager.reserve(1, num_tokens)
        held = manager.num_used_pages * layout.page_bytes
        assert held == reserved_cache_bytes(layout, num_tokens)
        states = needed_cache_bytes(spec, num_tokens, 2) - needed_cache_bytes(spec, 0, 2)
        assert needed_cache_bytes(spec, 0, 2) == LAYERS[name] * LAYER_BYTES[name]
        assert states == 0 if name == "mamba2" else states > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_step_reads_and_writes_each_row_s_states_once(name: str) -> None:
    bill = uniform(spec_of(name))
    for context in (2, 5000):
        sums = decodes(3, context)
        costs = bill.at(Summer(bill.windows).sums(sums.start, sums.count, 3))
        found = [cost for cost in costs if cost.op == "scan"]
        written = sum(cost.written_bytes for cost in found)
        assert written == 3 * LAYERS[name] * LAYER_BYTES[name]
        weights = sum(cost.read_bytes for cost in found) - written
        assert 0 < weights < written / 10


def test_snapshots_have_a_number_of_bytes() -> None:
    layout = plan_layout(spec_of("bamba").cache(2), block_tokens=16)
    one = sum(group.state_pages for group in layout.groups) * layout.page_bytes
    assert snapshot_bytes(layout, 40 * one // layout.page_bytes + 1) == 10 * one
