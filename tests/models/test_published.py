"""Protects the descriptions of public models: parameters and bytes a sequence keeps, against what is
published.

Parameters are the totals of the published safetensors (the Hub's model cards); for families that we only
describe, transformers' class of the published config on the meta device counts the same, but for the biases
of routers and Gemma 4's layer scalars, which it keeps as buffers. What is kept is by hand from the config:
elements a token of the layers that keep all tokens, and bytes of states.
"""

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.account import account
from ridgeline.ledger.memory import needed_cache_bytes, weights_bytes
from ridgeline.ledger.sums import Summer
from ridgeline.models.catalog import find_model
from ridgeline.models.describe import describe
from ridgeline.models.families import FAMILIES, model_spec
from ridgeline.models.shapes import PUBLISHED, SHAPES
from ridgeline.spec.quant import WeightPlan

MAMBA, DELTA = 4 * (64 * 128), 4 * (128 * 128)  # bytes of a head's state: Mamba-2 of 64 x 128, gated delta
PUBLISHED_FIGURES = {  # parameters; elements a token; bytes of a sequence's states
    "llama-7b": (6_738_415_616, 32 * 2 * 32 * 128, 0),
    "llama-13b": (13_015_864_320, 40 * 2 * 40 * 128, 0),
    "llama-30b": (32_528_943_616, 60 * 2 * 52 * 128, 0),
    "llama-65b": (65_285_660_672, 80 * 2 * 64 * 128, 0),
    "llama-2-7b": (6_738_415_616, 32 * 2 * 32 * 128, 0),
    "llama-2-13b": (13_015_864_320, 40 * 2 * 40 * 128, 0),
    "llama-2-70b": (68_976_648_192, 80 * 2 * 8 * 128, 0),
    "llama-3-8b": (8_030_261_248, 32 * 2 * 8 * 128, 0),
    "llama-3-70b": (70_553_706_496, 80 * 2 * 8 * 128, 0),
    "llama-3.1-8b": (8_030_261_248, 32 * 2 * 8 * 128, 0),
    "llama-3.1-70b": (70_553_706_496, 80 * 2 * 8 * 128, 0),
    "llama-3.1-405b": (405_853_388_800, 126 * 2 * 8 * 128, 0),
    "llama-3.2-1b": (1_235_814_400, 16 * 2 * 8 * 64, 0),
    "llama-3.2-3b": (3_212_749_824, 28 * 2 * 8 * 128, 0),
    "llama-3.3-70b": (70_553_706_496, 80 * 2 * 8 * 128, 0),
    "mistral-7b": (7_248_023_552, 32 * 2 * 8 * 128, 0),
    "ministral-8b": (8_019_808_256, 36 * 2 * 8 * 128, 0),
    "mistral-nemo-12b": (12_247_782_400, 40 * 2 * 8 * 128, 0),
    "mistral-small-22b": (22_247_282_688, 56 * 2 * 8 * 128, 0),
    "mistral-small-24b": (23_572_403_200, 40 * 2 * 8 * 128, 0),
    "mistral-large-123b": (122_610_069_504, 88 * 2 * 8 * 128, 0),
    "mixtral-8x7b": (46_702_792_704, 32 * 2 * 8 * 128, 0),
    "mixtral-8x22b": (140_630_071_296, 56 * 2 * 8 * 128, 0),
    "qwen2.5-0.5b": (494_032_768, 24 * 2 * 2 * 64, 0),
    "qwen2.5-7b": (7_615_616_512, 28 * 2 * 4 * 128, 0),
    "qwen2.5-14b": (14_770_033_664, 48 * 2 * 8 * 128, 0),
    "qwen2.5-32b": (32_763_876_352, 64 * 2 * 8 * 128, 0),
    "qwen2.5-72b": (72_706_203_648, 80 * 2 * 8 * 128, 0),
    "qwen1.5-moe-a2.7b": (14_315_784_192, 24 * 2 * 16 * 128, 0),
    "qwen2-57b-a14b": (57_408_658_944, 28 * 2 * 4 * 128, 0),
    "qwen3-8b": (8_190_735_360, 36 * 2 * 8 * 128, 0),
    "qwen3-14b": (14_768_307_200, 40 * 2 * 8 * 128, 0),
    "qwen3-32b": (32_762_123_264, 64 * 2 * 8 * 128, 0),
    "qwen3-30b-a3b": (30_532_122_624, 48 * 2 * 4 * 128, 0),
    "qwen3-235b-a22b": (235_093_634_560, 94 * 2 * 4 * 128, 0),
    "qwen3-coder-480b-a35b": (480_154_875_392, 62 * 2 * 8 * 128, 0),
    "qwen3-next-80b-a3b": (79_674_391_296, 12 * 2 * 2 * 256, 36 * (32 * DELTA + 4 * 3 * 8192)),
    "qwen3.5-27b": (26_895_998_464, 16 * 2 * 4 * 256, 48 * (48 * DELTA + 4 * 3 * 10240)),
    "qwen3.5-397b-a17b": (396_346_350_336, 15 * 2 * 2 * 256, 45 * (64 * DELTA + 4 * 3 * 12288)),
    "gemma-2-2b": (2_614_341_888, 13 * 2 * 4 * 256, 0),
    "gemma-2-9b": (9_241_705_984, 21 * 2 * 8 * 256, 0),
    "gemma-2-27b": (27_227_128_320, 23 * 2 * 16 * 128, 0),
    "gemma-3-1b": (999_885_952, 4 * 2 * 1 * 256, 0),
    "gemma-3-27b": (27_009_346_304, 10 * 2 * 16 * 128, 0),
    "gemma-4-31b": (30_697_345_280 + 60, 10 * 2 * 4 * 512, 0),
    "gemma-4-26b-a4b": (25_233_141_760 + 30, 5 * 2 * 2 * 512, 0),
    "gemma-4-e2b": (4_628_569_344 + 35, 3 * 2 * 1 * 512, 0),
    "gemma-4-e4b": (7_463_013_376 + 42, 4 * 2 * 2 * 512, 0),
    "gpt-oss-20b": (20_914_757_184, 12 * 2 * 8 * 64, 0),
    "gpt-oss-120b": (116_829_156_672, 18 * 2 * 8 * 64, 0),
    "deepseek-v2-lite": (15_706_484_224, 27 * 576, 0),
    "deepseek-v2": (235_741_434_880, 60 * 576, 0),
    "deepseek-v3": (671_026_404_352 + 58 * 256, 61 * 576, 0),
    "deepseek-v3.2": (671_877_929_216 + 58 * 256, 61 * (576 + 128), 0),
    "kimi-k2": (1_026_408_209_408 + 60 * 384, 61 * 576, 0),
    "glm-5": (743_911_199_232 + 75 * 256, 78 * (576 + 128), 0),
    "phi-4": (14_659_507_200, 40 * 2 * 10 * 128, 0),
    "phi-4-mini": (3_836_021_760, 32 * 2 * 8 * 128, 0),
    "smollm2-135m": (134_515_008, 30 * 2 * 3 * 64, 0),
    "smollm2-1.7b": (1_711_376_384, 24 * 2 * 32 * 64, 0),
    "falcon-7b": (6_921_720_704, 32 * 2 * 1 * 64, 0),
    "falcon-40b": (41_303_293_952, 60 * 2 * 8 * 64, 0),
    "falcon-180b": (178_557_088_768, 80 * 2 * 8 * 64, 0),
    "olmo-2-1b": (1_484_916_736, 16 * 2 * 16 * 128, 0),
    "olmo-2-7b": (7_298_617_344, 32 * 2 * 32 * 128, 0),
    "olmo-2-13b": (13_716_198_400, 40 * 2 * 40 * 128, 0),
    "olmo-2-32b": (32_234_279_936, 64 * 2 * 8 * 128, 0),
    "mamba2-2.7b": (2_702_599_680, 0, 64 * (80 * MAMBA + 4 * 3 * (5120 + 2 * 128))),
    "mamba-codestral-7b": (7_285_403_648, 0, 64 * (128 * MAMBA + 4 * 3 * (8192 + 2 * 8 * 128))),
    "bamba-9b": (9_780_235_392, 3 * 2 * 8 * 128, 29 * (128 * MAMBA + 4 * 3 * (8192 + 2 * 128))),
    "nemotron-h-8b": (8_100_852_736, 4 * 2 * 8 * 128, 24 * (128 * MAMBA + 4 * 3 * (8192 + 2 * 8 * 128))),
    "nemotron-h-56b": (56_324_350_464, 10 * 2 * 8 * 128, 54 * (512 * MAMBA + 4 * 3 * (16384 + 2 * 8 * 256))),
    "nemotron-3-nano-30b-a3b": (31_577_937_344 + 23 * 128, 6 * 2 * 2 * 128,
                                23 * (64 * MAMBA + 4 * 3 * (4096 + 2 * 8 * 128))),
    "kimi-linear-48b-a3b": (49_122_681_728, 7 * (512 + 64), 20 * (32 * DELTA + 4 * 3 * 3 * 4096)),
    "minimax-m2.5": (228_689_748_992 + 62 * 256, 62 * 2 * 8 * 128, 0),
    "minimax-text-01": (456_089_655_296, 10 * 2 * 8 * 128, 70 * 64 * DELTA),
    "qwen2.5-vl-3b": (3_754_622_976, 36 * 2 * 2 * 128, 0),
    "qwen2.5-vl-7b": (8_292_166_656, 28 * 2 * 4 * 128, 0),
    "qwen2.5-vl-72b": (73_410_777_344, 80 * 2 * 8 * 128, 0),
    "llava-v1.6-mistral-7b": (7_566_747_648, 32 * 2 * 8 * 128, 0),
    "internvl3-8b": (7_944_373_760, 28 * 2 * 4 * 128, 0),
    "smolvlm-256m": (256_484_928, 30 * 2 * 3 * 64, 0),
    "smolvlm-500m": (507_482_304, 32 * 2 * 5 * 64, 0),
    "smolvlm2-2.2b": (2_246_784_880, 24 * 2 * 32 * 64, 0),
    "molmo-7b-d": (8_021_025_280, 28 * 2 * 4 * 128, 0),
}


@pytest.mark.parametrize("name", PUBLISHED_FIGURES)
def test_parameters_and_what_a_sequence_keeps(name: str) -> None:
    """Windows are left behind at a long context, so that a further token adds what all-seeing layers keep."""
    spec, (params, elements, states) = find_model(name), PUBLISHED_FIGURES[name]
    assert spec.num_params == params
    far = 10**6
    assert needed_cache_bytes(spec, far, 2) - needed_cache_bytes(spec, far - 1, 2) == 2 * elements
    assert needed_cache_bytes(spec, 0, 2) == states


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_shape_can_be_planned(name: str) -> None:
    """Protects: every parameter of a block is read by one of its lines, as a whole or by its share, and a
    decode of one sequence reads no more than there is."""
    spec = find_model(name)
    for layer in spec.layers:
        for _, block in layer.blocks:
            read = [name for line in block.cost() for name in (*line.weights, *line.share_of)]
            assert sorted(read) == sorted(param.name for param in block.params())
    plan = WeightPlan.stored(spec)
    bill = account(spec, weight_bytes=plan.num_bytes, cache_element_bytes=2)
    sums = Summer(bill.windows, bill.layers_by_router(), few=bill.few).sums([0], [1], 1)
    read_bytes = sum(line.read_bytes for line in bill.at(sums))
    states = 2 * needed_cache_bytes(spec, 1, 2)
    assert 0 < read_bytes <= weights_bytes(spec, plan) * 1.001 + states


def test_gemma_3_with_its_encoder() -> None:
    """google/gemma-3-4b-it as published, which is the text model, SigLIP So400m and one matrix."""
    encoder = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_hidden_layers": 27,
               "patch_size": 14, "vision_use_head": False}
    spec = describe({"model_type": "gemma3", "text_config": SHAPES["gemma-3-4b"], "vision_config": encoder})
    assert spec.num_params == 4_300_079_472
    assert spec.vision is not None and spec.vision.image(1000, 700) == (4096, 256)


def test_mistral_small_3_1_with_pixtral_s_encoder() -> None:
    """mistralai/Mistral-Small-3.1-24B-Instruct-2503 as published; an image of 1540 x 1024 pixels in patches
    of 14, 2 x 2 to a token."""
    encoder = {"model_type": "pixtral", "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024,
               "image_size": 1540, "intermediate_size": 4096, "num_attention_heads": 16, "num_channels": 3,
               "num_hidden_layers": 24, "patch_size": 14, "rope_theta": 10000.0}
    spec = describe({"model_type": "mistral3", "image_token_index": 10, "multimodal_projector_bias": False,
                     "projector_hidden_act": "gelu", "spatial_merge_size": 2, "vision_config": encoder,
                     "text_config": SHAPES["mistral-small-24b"]})
    assert spec.num_params == 24_011_361_280
    assert spec.vision is not None and spec.vision.image(1540, 1024) == (110 * 74, 55 * 37)


def test_internvl_by_its_authors_config_is_the_one_of_transformers() -> None:
    published = SHAPES["internvl3-8b"]
    encoder = {**published["vision_config"], "model_type": "intern_vit_6b",  # type: ignore[dict-item]
               "qkv_bias": True, "qk_normalization": False, "norm_type": "layer_norm", "use_flash_attn": True}
    encoder.pop("attention_bias")
    spec = describe({"model_type": "internvl_chat", "downsample_ratio": 0.5, "force_image_size": 448,
                     "max_dynamic_patch": 6, "min_dynamic_patch": 1, "ps_version": "v2", "select_layer": -1,
                     "template": "internvl2_5", "use_thumbnail": True, "dynamic_image_size": True,
                     "llm_config": published["text_config"], "vision_config": encoder})
    same = describe(published)
    assert spec.num_params == same.num_params and spec.layers == same.layers
    assert spec.vision is not None and spec.vision.max_tiles == 6


def test_what_is_described_does_not_run() -> None:
    """Protects: loading refuses by name what planning knows; an unknown family or attention is never
    guessed."""
    for name in ("falcon-7b", "olmo-2-7b", "deepseek-v3.2", "qwen2.5-vl-7b", "nemotron-h-8b"):
        with pytest.raises(ConfigError, match="described for planning, not run yet: what runs is llama, "):
            model_spec(SHAPES[name])
    with pytest.raises(ConfigError, match="attention_k_eq_v = True: not supported"):
        model_spec(SHAPES["gemma-4-31b"])
    assert sum(config["model_type"] in FAMILIES for config in SHAPES.values()) > 60


@pytest.mark.parametrize(("name", "changes", "words"), [
    ("llama-3-8b", {"model_type": "llama9"},
     "model_type llama9 is not known, so its attention would be a guess"),
    ("minimax-text-01", {"attn_type_list": [0, 2] * 40},
     "attn_type_list.*full or linear attention for each of 80"),
    ("minimax-m2.5", {"attn_type_list": [0] * 62}, "attn_type_list.*not known: 1 in every layer is"),
    ("nemotron-h-8b", {"hybrid_override_pattern": "M" * 51 + "X"},
     "hybrid_override_pattern.*others are not known"),
    ("nemotron-3-nano-30b-a3b", {"moe_latent_size": 1024}, "moe_latent_size = 1024: not supported"),
    ("kimi-linear-48b-a3b", {"num_hidden_layers": 28}, "linear_attn_config.*each of 28 layers in one list"),
    ("glm-5", {"indexer_types": ["shared"] * 78}, "indexer_types.*not known"),
    ("falcon-7b", {"alibi": True}, "alibi = True: not supported"),
    ("qwen3-next-80b-a3b", {"layer_types": ["sparse_attention"] * 48}, "layer_types"),
    ("internvl3-8b", {"vision_config": {**SHAPES["internvl3-8b"]["vision_config"],  # type: ignore[dict-item]
                                        "use_qk_norm": True}}, "vision_config: use_qk_norm = True"),
    ("qwen2.5-vl-7b", {"new_projector": "x"}, "unknown field new_projector"),
    ("olmo-2-7b", {"clip_qkv": 8.0}, "unknown field clip_qkv = 8.0")])
def test_unknown_attention_and_fields_are_refused(name: str, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        describe({**SHAPES[name], **changes}, name)
