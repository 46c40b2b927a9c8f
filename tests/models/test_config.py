"""Configs -> ModelSpec: typed fields, refusals that help, both spellings, and the values that a missing
field takes."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.models.checkpoint import run_shapes
from ridgeline.models.families import model_spec, weight_sources
from ridgeline.models.gguf_config import ARCHITECTURES
from ridgeline.models.shapes import SHAPES
from ridgeline.spec.model import ModelSpec

SIZES: Mapping[str, object] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def spec(family: str = "llama", **fields: object) -> ModelSpec:
    return model_spec({"model_type": family, **SIZES, **fields})


def attention(of: ModelSpec, layer: int = 0) -> AttentionSpec:
    block = of.layers[layer].blocks[0][1]
    assert isinstance(block, AttentionSpec)
    return block


def windows(of: ModelSpec) -> list[int | None]:
    return [attention(of, i).window_tokens for i in range(len(of.layers))]


def test_variants_of_mixtures_windows_and_quantizations_are_refused_by_name() -> None:
    """Protects: what a family does not compute is refused with the field and what is supported."""
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    oss = {"num_local_experts": 8, "quantization_config": {"quant_method": "mxfp4"}}
    for family, fields, words in (
        ("qwen3_moe", {**moe, "use_sliding_window": True}, "use_sliding_window = True: not.*False is"),
        ("qwen3_moe", {"num_experts": 8}, "num_experts_per_tok is missing"),
        ("mixtral", {"hidden_act": "gelu"}, "hidden_act = 'gelu': not supported.*silu is"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True: not"),
        ("gemma3_text", {"hidden_activation": "relu"}, "hidden_activation = 'relu': not.*gelu_tanh is"),
        ("gpt_oss", {**oss, "swiglu_limit": 5.0}, "swiglu_limit = 5.0: not supported.*7.0 is"),
        ("gpt_oss", {**oss, "quantization_config": {"quant_method": "fp8"}}, r"quantized \(fp8\)"),
        ("mixtral", {"quantization_config": {"quant_method": "mxfp4"}}, r"quantized \(mxfp4\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            spec(family, **fields)
    assert spec("gpt_oss", **oss).stored_as == "mxfp4"


def test_unknown_fields_are_refused_unless_none_or_false() -> None:
    """Protects: a field that we ignore never changes a model silently, and the error names the way out."""
    spec(strange=None, odd=False)
    with pytest.raises(ConfigError, match=r"unknown field strange = 2.*hf_overrides=\{'strange': None\}"):
        spec(strange=2)
    with pytest.raises(ConfigError, match="unknown field attn_temperature"):
        spec("qwen3", attn_temperature=0)
    with pytest.raises(ConfigError, match="rope_scaling: unknown field alpha"):
        spec(rope_scaling={"type": "dynamic", "factor": 2.0, "alpha": 1000})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("hidden_size", "64", "hidden_size = '64' should be a whole number"),
        ("hidden_size", None, "field hidden_size is missing"),
        ("num_attention_heads", 0, "should be at least 1"),
        ("rms_norm_eps", "x", "should be a number"),
        ("tie_word_embeddings", "yes", "should be true or false"),
        ("eos_token_id", "</s>", "a token id or a list"),
        ("hidden_act", "gelu", "hidden_act = 'gelu': not supported"),
        ("num_key_value_heads", 3, "does not divide"),
        ("rope_scaling", {"type": "mrope"}, "known are default, linear"),
        ("rope_scaling", {"type": "linear"}, "field factor is missing"),
        ("rope_scaling", [1], "should be an object"),
        ("quantization_config", {"quant_method": "awq", "bits": 4}, r"quantized \(awq\)"),
        ("model_type", "qwen22", "did you mean 'qwen2'"),
        ("model_type", None, "model_type is missing"),
    ],
)
def test_wrong_values_are_named(field: str, value: object, words: str) -> None:
    """Protects: each mistake is told by its field and what it should be."""
    with pytest.raises(ConfigError, match=words):
        spec(**{field: value}) if field != "model_type" else model_spec({**SIZES, field: value})


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 2.0},
        LLAMA3,
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16,
            "mscale": 0.7,
            "mscale_all_dim": 1.0,
            "truncate": False,
        },
    ],
)
def test_old_and_new_spelling_of_rotary_fields_agree(scaling: dict[str, object] | None) -> None:
    """Protects: rope_theta + rope_scaling (with `type` or `rope_type`) and rope_parameters give one spec."""
    new = spec(rope_parameters={**(scaling or {"rope_type": "default"}), "rope_theta": 5e5})
    old = spec(rope_theta=5e5, rope_scaling=scaling)
    assert attention(new) == attention(old)
    if scaling:
        typed = {"type" if k == "rope_type" else k: v for k, v in scaling.items()}
        assert attention(spec(rope_theta=5e5, rope_scaling=typed)) == attention(old)
    assert attention(old).rope.kind == (scaling or {}).get("rope_type", "default")
    assert attention(old).rope.theta == 5e5


def test_rotary_values_that_configs_leave_out() -> None:
    """Protects: transformers' defaults for theta, the original length and factors given by two lengths."""
    assert attention(spec()).rope.theta == 10_000.0
    yarn = attention(spec(rope_scaling={"type": "yarn", "original_max_position_embeddings": 128})).rope
    assert (yarn.factor, yarn.beta_fast, yarn.beta_slow, yarn.truncate) == (4.0, 32.0, 1.0, True)
    assert (
        attention(
            spec(rope_scaling={k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"})
        ).rope.original_max_position
        == 512
    )
    assert attention(spec(partial_rotary_factor=0.5)).rope.rotary_dim == 8
    assert (
        attention(
            spec(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.25})
        ).rope.rotary_dim
        == 4
    )


def test_context_of_scaled_models() -> None:
    """Protects: dynamic widens the stated context, yarn reaches factor times the original, others stay as
    stated."""
    assert spec(rope_scaling={"type": "dynamic", "factor": 2.0}).max_position == 1024
    assert spec(rope_scaling={"type": "yarn", "factor": 4.0}).max_position == 2048
    assert (
        spec(
            rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        ).max_position
        == 512
    )
    assert spec(rope_scaling={"type": "linear", "factor": 4.0}).max_position == 512


def test_phi3_longrope() -> None:
    """Protects: the top-level original length wins, `su` and `yarn` mean longrope, wrong factor counts are
    refused."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    for kind in ("longrope", "su", "yarn"):
        found = attention(
            spec("phi3", original_max_position_embeddings=64, rope_scaling={"type": kind, **factors})
        )
        assert (found.rope.kind, found.rope.factor, found.rope.original_max_position) == ("longrope", 8.0, 64)
        assert found.rope.short_factor == (1.0,) * 8 and found.rope.long_factor == (2.0,) * 8
    with pytest.raises(ConfigError, match=r"long_factor.*3 numbers, where a rotary width of 16 needs 8"):
        spec("phi3", rope_scaling={"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 3})


def test_heads() -> None:
    """Protects: missing or null KV heads mean one a head; head_dim is free of hidden_size; Qwen3's own
    default."""
    assert attention(spec()).num_kv_heads == attention(spec(num_key_value_heads=None)).num_kv_heads == 4
    assert attention(spec(num_key_value_heads=2)).num_kv_heads == 2
    wide = attention(spec(head_dim=32, num_key_value_heads=1))
    assert (wide.head_dim, wide.q_size, wide.kv_size, wide.scale) == (32, 128, 32, 32**-0.5)
    assert attention(spec(head_dim=None)).head_dim == 16
    assert attention(spec("qwen3")).head_dim == 128


def test_biases_and_norms_by_family() -> None:
    """Protects: which projections have a bias (flag or family), and Qwen3's norms on q and k."""

    def biases(of: ModelSpec) -> tuple[bool, bool]:
        return attention(of).qkv_bias, attention(of).out_bias

    assert biases(spec()) == (False, False) and biases(spec(attention_bias=True)) == (True, True)
    assert biases(spec("qwen2")) == (True, False)
    assert biases(spec("qwen3", attention_bias=True)) == (True, True)
    assert attention(spec("qwen3")).qk_norm and not attention(spec("qwen2")).qk_norm
    mlp = spec(mlp_bias=True).layers[0].blocks[1][1]
    assert isinstance(mlp, MlpSpec) and mlp.bias
    with pytest.raises(ConfigError, match="unknown field attention_bias"):
        spec("mistral", attention_bias=True)


def test_windows() -> None:
    """Protects: which layers have a sliding window, from flags, layer lists and defaults; an unreachable
    one is none."""
    assert windows(spec("mistral", sliding_window=16)) == [16] * 4
    assert windows(spec("mistral", sliding_window=None)) == [None] * 4
    assert windows(spec("mistral", max_position_embeddings=8192)) == [4096] * 4
    assert windows(spec("mistral")) == [None] * 4
    assert windows(spec("qwen2", sliding_window=16)) == [None] * 4
    assert windows(spec("qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=3)) == [
        None
    ] * 3 + [16]
    kinds = ["full_attention", "sliding_attention"] * 2
    assert (
        windows(spec("qwen3", sliding_window=16, use_sliding_window=True, layer_types=kinds))
        == [None, 16] * 2
    )
    assert windows(spec("ministral", sliding_window=16, layer_types=kinds)) == [None, 16] * 2
    assert windows(spec("phi3", sliding_window=20)) == [20] * 4 and windows(spec("phi3")) == [None] * 4
    with pytest.raises(ConfigError, match=r"layer_types.*3 entries for 4 layers"):
        spec("ministral", layer_types=["full_attention"] * 3)
    with pytest.raises(ConfigError, match="layer_types"):
        spec("qwen3", layer_types=["linear_attention"] * 4)


def test_tokens_and_dtype() -> None:
    """Protects: one end id or several, negative ids as none, and both names of the dtype."""
    assert spec(eos_token_id=[2, 7, 2]).eos_token_ids == (2, 7)
    assert spec(eos_token_id=5, bos_token_id=1, pad_token_id=-1).eos_token_ids == (5,)
    assert spec(pad_token_id=-1).pad_token_id is None and spec(bos_token_id=1).bos_token_id == 1
    assert spec(torch_dtype="float16").dtype == "float16" and spec(dtype="float32").dtype == "float32"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.738),
        ("llama-3.1-8b", 8.030),
        ("llama-3.2-1b", 1.236),
        ("smollm2-135m", 0.1345),
        ("qwen2.5-0.5b", 0.494),
        ("qwen3-0.6b", 0.596),
        ("qwen3-8b", 8.191),
        ("mistral-7b", 7.248),
        ("phi-3-mini", 3.821),
        ("gemma-3-270m", 0.2681),
        ("gemma-3-1b", 0.9999),
        ("gpt-oss-20b", 20.9148),
        ("gpt-oss-120b", 116.8292),
    ],
)
def test_published_shapes_have_the_published_size(name: str, billions: float) -> None:
    """Protects: a typo in a shape shows as a wrong parameter count (counts from the model cards)."""
    assert model_spec(SHAPES[name], name).num_params / 1e9 == pytest.approx(billions, abs=6e-4)


GGUF_TYPES = {*(ARCHITECTURES[name] for name in ARCHITECTURES), "mistral", "mixtral"}  # what a file may be


def test_every_weight_of_every_shape_has_a_source() -> None:
    """Protects: names for all parameters, in both formats where we read both, with rows that add up; q and k
    of llama GGUF in pairs."""
    for name in run_shapes():
        config = SHAPES[name]
        of = replace(model_spec(config, name), layers=model_spec(config, name).layers[:1])
        for gguf in (False, True) if config["model_type"] in GGUF_TYPES else (False,):
            sources = weight_sources(of, gguf=gguf)
            for full, param in of.params():
                source, shape = sources[full], sources[full].shape_of_each(param.shape)
                parts = source.parts_of(0) if source.matrices else source.parts
                rows = [part.rows for part in parts]
                assert rows == [None] or sum(r or 0 for r in rows) == shape[0], full
    heads = [
        p.interleaved_heads
        for p in weight_sources(spec(num_key_value_heads=2), gguf=True)["layers.0.attn.qkv.weight"].parts
    ]
    assert heads == [4, 2, 0]
    assert all(
        p.interleaved_heads == 0 for s in weight_sources(spec("qwen2"), gguf=True).values() for p in s.parts
    )
