"""Adapters as files: what is read, in terms of our weights, and what is refused by name."""

import json
import shutil
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ridgeline.base.errors import CheckpointError, ConfigError, RidgelineError
from ridgeline.models.adapter import ELEMENT_BYTES, RANKS, places, read_adapter, slot_bytes
from ridgeline.models.families import model_spec
from tests.adapters.made import ALL, adapter_folder, loaded
from tests.helpers import tiny_spec

SPEC = tiny_spec()
MIXTURE = model_spec({
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 32, "vocab_size": 97,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
})  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapter_folder(tmp_path_factory.mktemp("adapter"), SPEC)


def changed(whole: Path, folder: Path, **fields: Any) -> Path:
    """A copy with other fields in its config."""
    shutil.copytree(whole, folder)
    config = json.loads((folder / "adapter_config.json").read_text()) | fields
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_rows_of_joined_weights() -> None:
    """q, k and v lie in the rows of one weight, gate and up in those of another; the head takes none."""
    found = places(SPEC)
    q, k, v = (found[f"model.layers.1.self_attn.{name}_proj"] for name in "qkv")
    assert {q.weight, k.weight, v.weight} == {"layers.1.attn.qkv.weight"}
    assert [(one.first, one.rows) for one in (q, k, v)] == [(0, 32), (32, 16), (48, 16)]
    assert found["model.layers.0.mlp.up_proj"].first == found["model.layers.0.mlp.up_proj"].rows
    assert len(found) == 2 * len(ALL)


def test_ranks_and_scales(whole: Path, tmp_path: Path) -> None:
    """PEFT's patterns match a module's end from a dot on; the scale of a rank-stabilised pair has the
    root."""
    folder = changed(whole, tmp_path / "a", alpha_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 20})
    scales = {pair.place.part.name.removesuffix(".weight"): pair.scale
              for pair in read_adapter(folder, SPEC, max_rank=4).pairs}
    assert scales["model.layers.0.self_attn.q_proj"] == 0.5 and scales["model.layers.0.mlp.down_proj"] == 2.0
    assert scales["model.layers.1.mlp.down_proj"] == 5.0
    rooted = read_adapter(changed(whole, tmp_path / "b", use_rslora=True), SPEC, max_rank=4)
    assert {pair.scale for pair in rooted.pairs} == {8 / sqrt(4)} and rooted.base == "some/model"


@pytest.mark.parametrize(("fields", "said"), [
    ({"use_dora": True}, "DoRA"), ({"bias": "all"}, "bias"), ({"modules_to_save": ["head"]}, "to_save"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out"), ({"peft_type": "IA3"}, "peft_type"),
    ({"lora_bias": True}, "lora_bias"),
    ({"magic": 3}, "unknown field magic"), ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    ({"layer_replication": [[0, 2]]}, "repeated"), ({"target_parameters": ["x"]}, "target_parameters"),
    ({"trainable_token_indices": [1]}, "embeddings"), ({"alora_invocation_tokens": [1]}, "by tokens"),
    ({"target_modules": ["lm_head"]}, "'lm_head'"), ({"target_modules": "(("}, "regular expression"),
    ({"target_modules": [*ALL, "q_norm"]}, "'q_norm'"), ({"r": 5}, r"need \[5, "), ({"r": 0}, "at least 1"),
    ({"rank_pattern": {"q_proj": 9}}, r"need \[9, 32\]"), ({"rank_pattern": [3]}, "object of numbers"),
    ({"alpha_pattern": {"(": 2}}, "regular expression"), ({"layers_to_transform": "1"}, "list of num"),
])  # fmt: skip
def test_configs_that_are_refused(whole: Path, tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RidgelineError, match=said):
        read_adapter(changed(whole, tmp_path / "a", **fields), SPEC, max_rank=64)


def test_files_that_are_refused(whole: Path, tmp_path: Path) -> None:
    """Missing, cut short, with tensors of another kind, of another model or incomplete; ranks beyond the
    slots'; numbers that are none."""
    with pytest.raises(CheckpointError, match=r"adapter_config\.json"):
        read_adapter(tmp_path / "nowhere", SPEC, max_rank=4)
    with pytest.raises(ConfigError, match="--max-lora-rank 4"):
        read_adapter(whole, SPEC, max_rank=3)
    with pytest.raises(CheckpointError, match="another model"):
        read_adapter(whole, tiny_spec(hidden_size=64, head_dim=16), max_rank=4)
    name = "base_model.model.model.layers.1.self_attn.k_proj.lora_"
    b = f"{name}B.weight"
    for number, (change, said) in enumerate({
        lambda t: t.pop(f"{name}A.weight"): "lora_A of model.layers.1.self_attn.k_proj is missing",
        lambda t: [t.pop(f"{name}{side}.weight") for side in "AB"]: "no pair for model.layers.1.self_attn",
        lambda t: t.update({f"{name}magnitude_vector": np.zeros(3)}): "magnitude_vector is none of",
        lambda t: t.update({"base_model.model.model.embed_tokens.lora_embedding_A": np.zeros(3)}):
            "lora_embedding_A is none of",
        lambda t: t.update({b: t[b] * np.nan}): "holds NaN",
        lambda t: t.update({b: t[b].astype(np.int32)}): "stored as int32",
    }.items()):  # fmt: skip
        folder = changed(whole, tmp_path / str(number))
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")
        with pytest.raises(CheckpointError, match=said):
            loaded(folder, SPEC)
    raw = (whole / "adapter_model.safetensors").read_bytes()
    for size in (0, 4, 200, len(raw) // 2, len(raw) - 1):
        folder = changed(whole, tmp_path / f"cut{size}")
        (folder / "adapter_model.safetensors").write_bytes(raw[:size])
        with pytest.raises(CheckpointError, match=r"incomplete|empty|offsets"):
            loaded(folder, SPEC)


def test_a_pair_of_an_expert_is_refused_as_one(tmp_path: Path) -> None:
    """It is of this very model: what is not done is said, not that the adapter is for another."""
    file = adapter_folder(tmp_path / "a", MIXTURE) / "adapter_model.safetensors"
    expert = "base_model.model.model.layers.1.block_sparse_moe.experts.3.w2.lora_"
    save_file(load_file(file) | {f"{expert}{side}.weight": np.zeros((4, 4)) for side in "AB"}, file)
    with pytest.raises(CheckpointError, match="takes no adapter here: only linear layers of blocks do"):
        read_adapter(tmp_path / "a", MIXTURE, max_rank=4)


def test_some_layers_and_modules(whole: Path, tmp_path: Path) -> None:
    """Whole without what the config leaves out, and not without what it asks for."""
    tensors = {name: tensor for name, tensor in load_file(whole / "adapter_model.safetensors").items()
               if ".layers.1." in name and "v_proj" not in name}
    for number, fields in enumerate((
        {"layers_to_transform": [1], "exclude_modules": ["v_proj"]},
        {"target_modules": r".*\.1\..*(?<!v)_proj"},
        {"target_modules": "all-linear", "layers_to_transform": 1, "exclude_modules": r".*v_proj"},
        {"layers_to_transform": [1]}, {"exclude_modules": ["v_proj"]},
    )):  # fmt: skip
        folder = changed(whole, tmp_path / str(number), **fields)
        save_file(tensors, folder / "adapter_model.safetensors")
        if number < 3:
            assert len(read_adapter(folder, SPEC, max_rank=4).pairs) == len(ALL) - 1
        else:
            with pytest.raises(CheckpointError, match="no pair for"):
                read_adapter(folder, SPEC, max_rank=4)


def test_a_slot_holds_any_adapter_of_its_rank(whole: Path, tmp_path: Path) -> None:
    """The largest fills it to the byte."""
    full = loaded(adapter_folder(tmp_path, SPEC, rank=RANKS), SPEC)
    assert full.num_bytes == slot_bytes(SPEC, RANKS)
    numbers = sum(one.rows + one.columns for one in places(SPEC).values())
    assert full.num_bytes == ELEMENT_BYTES * RANKS * numbers
    assert loaded(whole, SPEC).num_bytes <= slot_bytes(SPEC, 4) < full.num_bytes


def test_digests_tell_what_is_computed(whole: Path, tmp_path: Path) -> None:
    """The same for a copy under another name; another for other numbers, scales or places."""
    copy = changed(whole, tmp_path / "copy", lora_dropout=0.3)
    assert loaded(copy, SPEC).digest == loaded(whole, SPEC).digest
    others = [adapter_folder(tmp_path / "seed", SPEC, seed=1),
              changed(whole, tmp_path / "alpha", lora_alpha=9.0),
              adapter_folder(tmp_path / "few", SPEC, targets=ALL[:3])]
    assert len({loaded(folder, SPEC).digest for folder in (whole, *others)}) == 4
