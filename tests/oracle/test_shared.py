"""Layers that read an earlier layer's keys and values: Gemma 4's dense text model against a tiny random one
of transformers, float32, logits within 1e-4."""

from pathlib import Path

import torch

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.spec.cache import Paged, Shared, Window
from tests.oracle.ours import Ours
from tests.oracle.reference import reference_logits, reference_model
from tests.oracle.test_families import TOLERANCE, pieces, text

FIELDS = {"num_hidden_layers": 6, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
          "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 2, "sliding_window": 16,
          "layer_types": ["sliding_attention", "full_attention"] * 3, "use_double_wide_mlp": True,
          "final_logit_softcapping": 30.0}


def test_logits_equal_the_reference(tmp_path: Path) -> None:
    """Protects: the source map, reading of pages that another layer wrote in the same step, windows of shared
    layers, two head widths with a rotary embedding each, norms of values, scaled layers."""
    torch.set_num_threads(1)
    model = reference_model("Gemma4ForCausalLM", **FIELDS)
    model.save_pretrained(tmp_path)
    ours, texts = Ours(tmp_path), [text(length) for length in (37, 77)]
    owners = [type(layer[0]) for layer in ours.spec.cache(1)]
    assert owners == [Window, Paged, Window, Paged, Shared, Shared]
    attention = ours.spec.layers[5].blocks[0][1]
    assert isinstance(attention, AttentionSpec) and attention.reads_layer == 3
    wants = [reference_logits(model, ids) for ids in texts]
    for ids, want in zip(texts, wants, strict=True):
        assert want.std() > 0.3
        for chunks in (None, pieces(len(ids), seed=1)):
            assert (ours.logits(ids, chunks) - want).abs().max() < TOLERANCE, chunks
    assert (ours.logits(texts[0], [1] * 37) - wants[0]).abs().max() < TOLERANCE
