"""DeepSeek and Gemma 4 configs: what is read, and what is refused by the name of its field."""

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.moe.spec import MoeSpec
from ridgeline.models.families import model_spec, weight_sources
from ridgeline.models.shapes import SHAPES

GEMMA4 = {"model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6,
          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
          "hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention", "full_attention"] * 3}


@pytest.mark.parametrize(("name", "billions", "scale"), [
    ("deepseek-v2-lite", 15.706, 0.11472), ("deepseek-v2", 235.741, 0.11472),
    ("deepseek-v3", 671.026, 0.13523)])
def test_published_models(name: str, billions: float, scale: float) -> None:
    """Sizes as published; the softmax scale is 192^-0.5 times the square of yarn's 0.1 m ln 40 + 1."""
    spec = model_spec(SHAPES[name])
    assert round(spec.num_params / 1e9, 3) == billions
    attention, moe = spec.layers[-1].blocks[0][1], spec.layers[-1].blocks[1][1]
    assert isinstance(attention, MlaSpec) and isinstance(moe, MoeSpec)
    assert attention.scale == pytest.approx(scale, rel=1e-4)
    assert spec.layers[0].blocks[1][0] == "mlp" and spec.max_position == 163840
    assert set(weight_sources(spec)) == {full for full, _ in spec.params()}


@pytest.mark.parametrize(("name", "field", "value"), [
    ("deepseek-v3", "topk_method", "greedy"), ("deepseek-v3", "scoring_func", "softmax"),
    ("deepseek-v2", "norm_topk_prob", True), ("deepseek-v2", "attention_bias", True),
    ("deepseek-v3", "n_group", 7), ("deepseek-v3", "num_experts_per_tok", 129),
    ("deepseek-v3", "rope_interleave", False), ("deepseek-v3", "index_topk", 2048)])
def test_what_deepseek_does_not_have_is_refused(name: str, field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        model_spec({**SHAPES[name], field: value})


@pytest.mark.parametrize(("field", "value"), [
    ("hidden_size_per_layer_input", 256), ("enable_moe_block", True), ("attention_k_eq_v", True),
    ("num_kv_shared_layers", 6), ("num_kv_shared_layers", 5), ("use_bidirectional_attention", "all"),
    ("per_layer_config", {"1": {"head_dim": 32}})])
def test_what_gemma4_does_not_have_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        model_spec({**GEMMA4, field: value})


def test_sharing_layers_read_the_last_of_their_kind() -> None:
    spec = model_spec({**GEMMA4, "num_kv_shared_layers": 3})
    readers = [getattr(layer.blocks[0][1], "reads_layer", None) for layer in spec.layers]
    assert readers == [None, None, None, 1, 2, 1]
