"""Protects finding a model by what people call it, and what is said when there is none."""

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from ridgeline.base.errors import CheckpointError, ConfigError
from ridgeline.models.catalog import FOLDER, GGUF, HUB, PUBLISHED_SHAPE, find, find_model, model_names
from ridgeline.models.describe import describe
from ridgeline.models.resolve import _packaged_default
from ridgeline.models.shapes import PUBLISHED, SHAPES
from ridgeline.spec.quant import FORMATS, WeightPlan
from tests.models.hub_stand_in import Hub, running


@pytest.mark.parametrize(("written", "name"), [
    ("llama-3-8b", "llama-3-8b"), ("Llama 3.1 8B Instruct", "llama-3.1-8b"), ("llama3.1:8b", "llama-3.1-8b"),
    ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"), ("Meta-Llama-3-8B-Instruct", "llama-3-8b"),
    ("Llama-2-7B-chat", "llama-2-7b"), ("Llama-3.3-70B-Instruct", "llama-3.3-70b"),
    ("Llama-3.1-405B-Instruct", "llama-3.1-405b"), ("qwen2.5-7b", "qwen2.5-7b"), ("QwQ-32B", "qwen2.5-32b"),
    ("Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"), ("Qwen3-235B-A22B", "qwen3-235b-a22b"),
    ("deepseek-v3", "deepseek-v3"), ("DeepSeek-R1-0528", "deepseek-v3"), ("r1", "deepseek-v3"),
    ("mixtral-8x7b", "mixtral-8x7b"), ("Mixtral 8x22B Instruct v0.1", "mixtral-8x22b"),
    ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"), ("mistral nemo", "mistral-nemo-12b"),
    ("gpt-oss-120b", "gpt-oss-120b"), ("openai/gpt-oss-20b", "gpt-oss-20b"), ("phi4", "phi-4"),
    ("SmolLM2-135M-Instruct", "smollm2-135m"), ("gemma-2-9b-it", "gemma-2-9b"),
    ("mistral-7b-instruct-v0.2", "mistral-7b-v0.2"), ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
    ("Qwen3-4B-Thinking-2507-FP8", "qwen3-4b-2507"), ("DeepSeek-V3-0324", "deepseek-v3"),
    ("zhipuai/GLM-5", "glm-5"), ("MiniMaxAI/MiniMax-M2.5", "minimax-m2.5"), ("Qwen3.6-27B", "qwen3.5-27b"),
    ("nvidia/DeepSeek-R1-NVFP4", "deepseek-v3"), ("gemma-4-31b-it", "gemma-4-31b"),
    ("falcon-7b-instruct", "falcon-7b"), ("molmo 7b", "molmo-7b-d"), ("SmolVLM", "smolvlm2-2.2b")])
def test_names_as_people_write_them(written: str, name: str) -> None:
    found = find(written)
    assert (found.name, found.where) == (name, PUBLISHED_SHAPE)
    assert found.spec.num_params == describe(SHAPES[name]).num_params


def test_every_name_leads_to_its_own_model() -> None:
    """Protects: an alias never shadows another model's own name."""
    assert set(model_names()) == set(PUBLISHED)
    for name, shape in PUBLISHED.items():
        assert find(name).name == name
        assert {find(other).name for other in shape.also} <= {name}


def test_a_format_in_a_name_is_the_format_of_the_matrices() -> None:
    assert find_model("nvidia/Llama-3.1-8B-Instruct-FP8").stored_as == "fp8"
    assert find_model("Llama-3.1-8B-Instruct").stored_as == ""
    assert find_model("deepseek-r1").stored_as == "fp8_b128"
    oss = find_model("gpt-oss-120b")
    assert (oss.stored_as, oss.stored_plain) == ("mxfp4", (".attn.",))
    assert all(shape.stored_as in ("", *FORMATS) for shape in PUBLISHED.values())


@pytest.mark.parametrize(("name", "gigabytes"), [("gpt-oss-20b", 13.76), ("gpt-oss-120b", 65.25)])
def test_published_bytes_of_quantized_models(name: str, gigabytes: float) -> None:
    """The safetensors index's total_size of openai/gpt-oss-20b and gpt-oss-120b."""
    spec = find_model(name)
    plan = WeightPlan.stored(spec)
    total = sum(plan.num_bytes(full, param) for full, param in spec.params())
    assert total / 1e9 == pytest.approx(gigabytes, rel=0.005)


def test_a_miss_gives_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match=r"no model 'lama-3.1-8': the nearest are llama-3.1-8b, "):
        find_model("lama-3.1-8")
    with pytest.raises(ConfigError, match="or give a folder, a GGUF file or a Hub id"):
        find_model("qwen2.5-8b")
    with pytest.raises(ConfigError, match=r"no file or folder '\./nowhere\.gguf': give one that is there"):
        find_model("./nowhere.gguf")


def test_a_hub_id_that_cannot_be_reached_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE is set.*by name, the nearest are"):
        find_model("nobody/llama-3.1-9b")


def test_a_hub_id_costs_one_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Protects: no weight and no tokenizer is fetched for a plan, and a repository without a config says
    so."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    config = json.dumps({**SHAPES["olmo-2-1b"], "num_hidden_layers": 3}).encode()
    files = {"config.json": config, "tokenizer.json": b"{}", "model.safetensors": bytes(99)}
    with running(Hub(repo="nobody/olmo-3l", files=files)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        found = find("nobody/olmo-3l@v1")
        assert (found.where, found.name, len(found.spec.layers)) == (HUB, "nobody/olmo-3l", 3)
        assert hub.fetched() == {"config.json"}
    with running(Hub(repo="nobody/packed", files={"a.gguf": b""})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        with pytest.raises(CheckpointError, match=r"no config\.json: it has a\.gguf"):
            find("nobody/packed")


def test_a_folder_with_a_config_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SHAPES["qwen3-0.6b"], "torch_dtype": "bfloat16"}))
    found = find(str(tmp_path))
    assert (found.where, found.stored_bytes, found.files_bytes) == (FOLDER, None, None)
    assert found.spec.num_params == find_model("qwen3-0.6b").num_params


def test_a_gguf_file_gives_exact_bytes() -> None:
    """Protects: weights by the tensors' own headers, together all of the file but its rope factors."""
    path = _packaged_default()
    assert path is not None
    found = find(str(path))
    assert found.where == GGUF and found.stored_bytes is not None and found.files_bytes is not None
    assert sum(found.stored_bytes.values()) == found.files_bytes < path.stat().st_size
    assert set(found.stored_bytes) == {name for name, _ in found.spec.params()}


@pytest.mark.parametrize(("notes", "words"), [
    ({"quant_method": "eetq"}, "quant_method = 'eetq'.*not known"),
    ({"quant_method": "awq", "bits": 4, "group_size": 64}, "group_size = 64: not known: 32 or 128 is"),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, "no weights in group_0")])
def test_formats_that_we_do_not_know_are_refused(notes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        describe({**SHAPES["qwen3-0.6b"], "quantization_config": notes})


@pytest.mark.parametrize(("notes", "stored"), [
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4_g128_zero"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4_g128"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_b128"),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
        "weights": {"type": "int", "num_bits": 8}}}}, "int8_row"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4")])
def test_notes_of_quantized_checkpoints(notes: dict[str, object], stored: str) -> None:
    assert describe({**SHAPES["qwen3-0.6b"], "quantization_config": notes}).stored_as == stored


def test_formats_count_scales_and_zero_points() -> None:
    """Bytes of a [256, 512] matrix, by hand."""
    for name, num_bytes in (
            ("int4_g128", 65536 + 256 * 4 * 2), ("int4_g128_zero", 65536 + 256 * 4 * 2 + 512),
            ("fp8", 131072 + 256 * 4), ("fp8_b128", 131072 + 2 * 4 * 4), ("mxfp4", 65536 + 256 * 16),
            ("nvfp4", 65536 + 256 * 32), ("int8_row", 131072 + 512)):
        assert FORMATS[name].num_bytes(256, 512) == num_bytes, name
