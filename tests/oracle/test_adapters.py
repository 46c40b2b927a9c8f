"""PEFT's own model of an adapter gives the logits; ours reads what it has saved."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from tests.adapters.made import adapter_folder, loaded
from tests.oracle.cases import TOLERANCE
from tests.oracle.oracles import Oracle, text
from tests.oracle.ours import Ours
from tests.oracle.reference import reference_logits, write_gguf
from tests.quant.blocks import kernels

LENGTH = 21
ALWAYS = ("llama", "llama with biases", "gemma2", "deepseek_v3")
CASES = {
    "llama": LoraConfig(
        r=4, lora_alpha=12, target_modules="all-linear", alpha_pattern={"o_proj": 3},
        rank_pattern={"q_proj": 7, "layers.1.mlp.up_proj": 2}),
    "llama with biases": LoraConfig(r=6, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"]),
    "phi3": LoraConfig(r=3, target_modules=["qkv_proj", "gate_up_proj"]),
    "gemma2": LoraConfig(r=5, target_modules=["o_proj", "down_proj", "k_proj"], layers_to_transform=[1]),
    "qwen3": LoraConfig(r=5, target_modules=r".*\.(k_proj|gate_proj)"),
    "deepseek_v3": LoraConfig(r=5, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]),
    "qwen2_moe": LoraConfig(r=4, target_modules=r".*(self_attn\.[qkvo]_proj|shared_expert\.\w+_proj)"),
    "bamba": LoraConfig(r=4, target_modules=["in_proj", "out_proj", "q_proj"]),
}  # fmt: skip


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[] if case in ALWAYS else pytest.mark.soak) for case in CASES])
def test_logits_equal_pefts(oracle: Callable[[str], Oracle], case: str, tmp_path: Path) -> None:
    """Also fed in chunks and token by token, and far from the base model's."""
    one = oracle(case)
    model = get_peft_model(deepcopy(one.model), CASES[case])
    random = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.3, generator=random)
    model.save_pretrained(tmp_path)
    adapter = loaded(tmp_path, one.ours.spec)
    want = reference_logits(model, text(LENGTH))
    assert (want - one.want(LENGTH)).abs().max() > 0.1
    for chunks in ([LENGTH], [9, 7, *[1] * (LENGTH - 16)]):
        found = one.ours.logits(text(LENGTH), chunks, adapter)
        assert (found - want).abs().max() < 2 * TOLERANCE, (case, chunks)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_over_a_gguf_file(oracle: Callable[[str], Oracle], kind: str, tmp_path: Path) -> None:
    """Whose rows of q and k stand in another order, and whose matrices are multiplied packed."""
    one, folder = oracle("llama"), tmp_path / "adapter"
    adapter = loaded(adapter_folder(folder, one.ours.spec, strength=3.0), one.ours.spec)
    merged = PeftModel.from_pretrained(deepcopy(one.model), folder)
    file = tmp_path / "m.gguf"
    write_gguf(one.model, file, "llama", kind)
    ours, chunks = Ours(file), [12, *[1] * 9]
    plain, want = ours.logits(text(LENGTH), chunks, adapter), reference_logits(merged, text(LENGTH))
    assert (want - one.want(LENGTH)).abs().max() > 1
    assert (plain - want).abs().max() < (2 * TOLERANCE if kind == "F32" else 1.0)
    if kind == "Q8_0":
        kernels()
        ours.pack()
        assert (ours.logits(text(LENGTH), chunks, adapter) - plain).abs().max() < 5e-3
