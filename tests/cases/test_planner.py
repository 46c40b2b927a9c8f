"""C-27 and C-28: what the planner makes of head sizes, grouped heads and experts, as its JSON says it."""

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli import main

DENSE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "intermediate_size": 8192, "hidden_act": "silu",
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
DEFAULT = DENSE | {"num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9,
                   "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152,
                   "tie_word_embeddings": True}  # fmt: skip
EXPERTS = DENSE | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 4,
    "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    "num_local_experts": 16, "num_experts_per_tok": 2, "intermediate_size": 512,
}  # fmt: skip


def plan(folder: Path, config: dict[str, Any], capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["plan", str(folder), "--gpu", "h100", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("config, kv_bytes", [
    (DENSE | {"num_hidden_layers": 36, "hidden_size": 2560, "head_dim": 128}, 147_456),
    (DENSE | {"num_hidden_layers": 32, "hidden_size": 4096}, 131_072),
    (DEFAULT, 23_040),
    (DENSE | {"num_hidden_layers": 32, "hidden_size": 4096, "num_key_value_heads": 1}, 16_384),
    ({k: v for k, v in DENSE.items() if k != "num_key_value_heads"}
     | {"num_hidden_layers": 32, "hidden_size": 4096}, 524_288),
])  # fmt: skip
def test_c27_kv_bytes_of_a_token(
    config: dict[str, Any], kv_bytes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, config, capsys)["kv_bytes_per_token"] == kv_bytes


def test_c27_a_tied_embedding_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(tmp_path, DEFAULT, capsys)
    assert found["parameters"] == {"total": 134_515_008, "active_per_token": 134_515_008}
    assert found["weights_bytes"] == 2 * 134_515_008
    untied = plan(tmp_path, DEFAULT | {"tie_word_embeddings": False}, capsys)
    assert untied["parameters"]["total"] == 162_826_560


def test_c28_memory_by_all_experts_speed_by_the_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(tmp_path, EXPERTS, capsys)
    assert found["parameters"] == {"total": 176_759_808, "active_per_token": 88_679_424}
    assert found["nominal"]["weights_bytes"] == 353_519_616
    router_bytes = 4 * 16 * 1024 * 2  # held in float32
    assert found["memory_per_device_bytes"]["weights"] == 353_519_616 + router_bytes
    small = plan(tmp_path, EXPERTS, capsys, "--memory", "300MB", "--workspace", "0GB")
    assert small["fits"] is False and small["feasible"] is False
    short = ("--prompt", "1", "--output", "1", "--batch")
    alone, many = (plan(tmp_path, EXPERTS, capsys, *short, batch)["tpot_s"] for batch in ("1", "256"))
    embedding = 32000 * 1024  # a gather: a step reads a row of it for each token
    rate = 353_519_616 / 3.35e12
    assert alone < rate and many > alone * 176_759_808 / 88_679_424
    assert alone == pytest.approx((88_679_424 - embedding) * 2 / 3.35e12, rel=0.02)
    assert main(["plan", str(tmp_path), "--gpu", "h100"]) == 0
    assert "176,759,808 parameters, of which a token alone reads 88,679,424" in capsys.readouterr().out


def test_c28_one_of_eight_experts_and_a_tied_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = EXPERTS | {"num_local_experts": 8, "num_experts_per_tok": 1, "tie_word_embeddings": True}
    attention, expert, rest = 2 * 1024 * 1024 + 2 * 1024 * 256, 3 * 1024 * 512, 8 * 1024 + 2 * 1024
    around = 32000 * 1024 + 1024
    assert plan(tmp_path, config, capsys)["parameters"] == {
        "total": 4 * (attention + rest + 8 * expert) + around,
        "active_per_token": 4 * (attention + rest + expert) + around}  # fmt: skip
