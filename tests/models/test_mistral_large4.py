"""Mistral Large 4's config: which layer reads which, and what is refused by the name of its field."""

from typing import Any

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.models.families import model_spec, weight_sources
from ridgeline.spec.cache import Paged, Shared

SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
         "num_hidden_layers": 6, "num_attention_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
         "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
         "max_position_embeddings": 512, "index_topk": 512, "kv_source_layers": [0, 0, 2, 3, 0, 3],
         "no_rope_layers": [1, 1, 1, 0, 1, 0]}


def config(**text: object) -> dict[str, Any]:
    return {"model_type": "mistral_large4", "text_config": {**SIZES, **text}, "dtype": "float16",
            "vision_config": {"model_type": "pixtral"}, "image_token_index": 10}


def test_layers_read_what_the_map_says() -> None:
    """An entry without a position is narrower; a layer that reads has queries, an up-projection and nothing
    of a latent's; the frequencies are one tensor of the file for all layers."""
    spec = model_spec(config())
    assert [layer.cache(2) for layer in spec.layers] == [
        (kept,) for kept in (Paged(bytes_per_entry=80), Shared(layer=0), Paged(bytes_per_entry=80),
                             Paged(bytes_per_entry=64), Shared(layer=0), Shared(layer=3))]
    assert (spec.dtype, spec.logits_softcap, spec.max_position) == ("float16", 30.0, 512)
    names = [param.name for param in spec.layers[5].blocks[0][1].params()]
    assert names == ["norm.weight", "q_down.weight", "q_scale", "q_bias", "up.weight", "out.weight"]
    sources = weight_sources(spec)
    assert set(sources) == {full for full, _ in spec.params()}
    assert {sources[f"layers.{i}.attn.turns"].parts[0].name for i in (0, 1, 2, 4)} == {"lerope.alpha"}


def test_every_fourth_layer_has_no_position_unless_the_config_says_which() -> None:
    changed = config()
    del changed["text_config"]["no_rope_layers"], changed["text_config"]["kv_source_layers"]
    widths = [block.rope.rotary_dim for layer in model_spec(changed).layers
              for _, block in layer.blocks if isinstance(block, MlaSpec)]
    assert widths == [8, 8, 8, 0, 8, 8]


@pytest.mark.parametrize(("field", "value", "said"), [
    ("index_topk", 511, "at least max_position_embeddings = 512"),
    ("kv_source_layers", [0, 0, 2, 3, 0], "one for each of 6"),
    ("kv_source_layers", [0, 0, 2, 3, 5, 5], "layer 4 cannot read layer 5"),
    ("kv_source_layers", [0, 0, 1, 3, 0, 3], "layer 2 cannot read layer 1"),
    ("kv_source_layers", [0, 0, 2, 2, 0, 5], "layer 3 cannot read layer 2"),
    ("no_rope_layers", [1, 1], "one for each of 6"),
    ("mlp_layer_types", ["dense"], "for each of 6"),
    ("layer_types", ["full_attention"] * 6, "indexed_attention is"),
    ("attention_bias", True, "False is"), ("q_lora_rank", 64, "unknown"), ("n_group", 3, "8 experts")])
def test_what_it_does_not_have_is_refused(field: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}.*{said}|{said}.*{field}"):
        model_spec(config(**{field: value}))


def test_a_wrapper_without_text_or_with_more_is_refused() -> None:
    with pytest.raises(ConfigError, match="text_config"):
        model_spec({"model_type": "mistral_large4"})
    with pytest.raises(ConfigError, match="audio_config"):
        model_spec({**config(), "audio_config": {"layers": 2}})
