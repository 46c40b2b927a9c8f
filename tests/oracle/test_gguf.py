"""GGUF files of the same weights give the same logits as safetensors, with rows, ties and scaling undone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from torch import Tensor

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.engine.numerics import choose_numerics
from ridgeline.engine.startup import Startup
from ridgeline.models.checkpoint import open_checkpoint
from ridgeline.models.families import FAMILIES
from ridgeline.nn.load import load_weights
from ridgeline.quant.stack import Stack
from tests.features import cases_running, refused
from tests.oracle.cases import GQA, TOLERANCE
from tests.oracle.oracles import Oracle, text
from tests.oracle.ours import Ours
from tests.oracle.reference import reference_logits, reference_model, write_gguf
from tests.quant.blocks import kernels

Metadata = dict[str, object]
YARN: Metadata = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                  "rope.scaling.original_context_length": 64}
LATENT: Metadata = {
    "attention.q_lora_rank": 32, "attention.kv_lora_rank": 32, "attention.key_length": 40,
    "attention.value_length": 32, "attention.key_length_mla": 24, "attention.value_length_mla": 24,
    "rope.dimension_count": 8, "leading_dense_block_count": 1}
CASES: dict[str, tuple[str, Metadata]] = {  # case -> the file's architecture and what else it says
    "llama": ("llama", {}),
    "llama tied, one KV head": ("llama", {}),
    "llama of wide heads": ("llama", {}),
    "llama 3.1": ("llama", {}),
    "llama linear": ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "mistral": ("llama", {"attention.sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "qwen2 yarn": ("qwen2", YARN),
    "qwen3": ("qwen3", {}),
    "qwen3 tied with biases": ("qwen3", {}),
    "mixtral": ("llama", {}),
    "qwen2_moe": ("qwen2moe", {}),
    "qwen3_moe": ("qwen3moe", {}),
    "phi3": ("phi3", {"attention.sliding_window": 13}),
    "gemma2": ("gemma2", {
        "attention.sliding_window": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3_text": ("gemma3", {"attention.sliding_window": 16}),
    "gpt_oss": ("gpt-oss", {"attention.sliding_window": 16} | YARN),
    "deepseek_v2": ("deepseek2", LATENT | {
        "expert_shared_count": 2, "expert_group_count": 4, "expert_group_used_count": 2,
        "expert_weights_scale": 16.0}),
    "deepseek_v3": ("deepseek2", LATENT | YARN | {
        "expert_shared_count": 1, "expert_group_count": 4, "expert_group_used_count": 2,
        "expert_weights_scale": 2.5, "expert_gating_func": 2, "expert_weights_norm": True,
        "rope.scaling.yarn_log_multiplier": 0.1}),
    "phi3 longrope": ("phi3", {
        "rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": (1 + 3 / 6) ** 0.5}),
}
FAMILIES_READ = [case for case in CASES if case in FAMILIES]
NOT_READ = {"ministral": "ministral", "gemma4_text": "gemma4", "mamba2": "mamba2", "bamba": "bamba",
            "qwen3_5_text": "qwen35", "mistral_large4": "mistral_large4"}  # fmt: skip


def written(one: Oracle, case: str, kind: str, path: Path) -> Path:
    arch, metadata = CASES[case]
    write_gguf(one.model, path, arch, kind, metadata)
    return path


@pytest.mark.parametrize("case", cases_running(CASES, "GGUF"))
def test_float32_file_equals_the_reference(oracle: Callable[[str], Oracle], tmp_path: Path,
                                           case: str) -> None:
    """Protects: metadata, names, row order of q and k for both head counts, ties, rotary factors."""
    ours = Ours(written(oracle(case), case, "F32", tmp_path / "m.gguf"))
    assert ours.spec.family == oracle(case).ours.spec.family
    assert (ours.logits(text(77)) - oracle(case).want(77)).abs().max() < TOLERANCE


def test_latents_that_are_not_split(oracle: Callable[[str], Oracle], tmp_path: Path) -> None:
    """Protects: DeepSeek files from before the up-projection was held in two parts."""
    one, metadata = oracle("deepseek_v2"), dict(CASES["deepseek_v2"][1])
    metadata |= {"attention.key_length": 24, "attention.value_length": 24}
    for name in ("key", "value"):
        del metadata[f"attention.{name}_length_mla"]
    write_gguf(one.model, tmp_path / "m.gguf", "deepseek2", "F32", metadata, split_latents=False)
    assert (Ours(tmp_path / "m.gguf").logits(text(77)) - one.want(77)).abs().max() < TOLERANCE


@pytest.mark.parametrize("family", [
    pytest.param(family, id=family, marks=refused(
        family, f"no GGUF architecture named {arch!r}", "GGUF", "packed weights"))
    for family, arch in NOT_READ.items()])
def test_other_files_are_refused(tmp_path: Path, family: str) -> None:
    """By the name that a file of the family has, and with those that are read."""
    writer = GGUFWriter(tmp_path / "m.gguf", NOT_READ[family])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    said = f"no GGUF architecture named {NOT_READ[family]!r}.*known are .*llama"
    with pytest.raises(ConfigError, match=said):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize("family", cases_running(FAMILIES_READ, "packed weights"))
def test_packed_weights_are_the_file_s_numbers(oracle: Callable[[str], Oracle], tmp_path: Path,
                                               family: str) -> None:
    """Protects: matrices of 4 and of 8 bits are multiplied as they are, and say what the same numbers say
    unpacked."""
    kernels()
    for kind in ("Q4_0", "Q8_0", *(["MXFP4"] if family == "gpt_oss" else [])):
        ours = Ours(written(oracle(family), family, kind, tmp_path / f"{kind}.gguf"))
        plain = ours.logits(text(40), [33, *[1] * 7])
        ours.pack()
        assert not any(isinstance(ours.weights[name], Tensor)
                       for name, param in ours.spec.params() if param.role == "linear")
        gap = (ours.logits(text(40), [33, *[1] * 7]) - plain).abs().amax(-1)
        routed = any(name == "moe" for layer in ours.spec.layers for name, _ in layer.blocks)
        assert (gap.median() if routed else gap.max()) < 5e-3, kind  # a router may change its mind


def test_packed_experts_come_back_from_the_cache(oracle: Callable[[str], Oracle], tmp_path: Path) -> None:
    """Protects: a stack of quantized experts is packed matrix by matrix, and the cache of repacked weights
    gives it back to the bit."""
    kernels()
    path = written(oracle("qwen2_moe"), "qwen2_moe", "Q8_0", tmp_path / "m.gguf")
    ours, checkpoint = Ours(path), open_checkpoint(path)
    numerics = choose_numerics(EngineConfig(), checkpoint, Startup(WallClock()))
    found = []
    for _ in range(2):
        ours.weights = load_weights(checkpoint, numerics.policy, progress=False, cache_dir=tmp_path / "cache")
        assert isinstance(ours.weights["layers.0.moe.gate_up.weight"], Stack)
        found.append(ours.logits(text(40), [33, *[1] * 7]))
    assert torch.equal(*found)


def logprob_gap(a: Tensor, b: Tensor, ids: list[int]) -> float:
    """Mean |difference| of the log-probabilities of a text's own tokens, in nat."""
    at = torch.tensor(ids[1:])[:, None]
    return float((a.log_softmax(-1)[:-1].gather(1, at) - b.log_softmax(-1)[:-1].gather(1, at)).abs().mean())


@pytest.mark.parametrize(("kind", "bound"), [("F16", 0.02), ("Q8_0", 0.1)])
def test_sixteen_and_eight_bits_stay_close(tmp_path: Path, kind: str, bound: float) -> None:
    """Protects: a tied llama with fewer KV heads, as GGUF and as safetensors, over 200 tokens."""
    model = reference_model("llama", **GQA, tie_word_embeddings=True)
    (tmp_path / "folder").mkdir()
    model.save_pretrained(tmp_path / "folder")
    write_gguf(model, tmp_path / "m.gguf", "llama", kind)
    ids = text(200)
    assert (
        logprob_gap(Ours(tmp_path / "m.gguf").logits(ids), Ours(tmp_path / "folder").logits(ids), ids) < bound
    )


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantized_file_equals_the_reference_with_rounded_weights(tmp_path: Path, kind: str) -> None:
    """Protects: what is lost is the file's rounding and nothing else."""
    model = reference_model("llama", **GQA)
    write_gguf(model, tmp_path / "m.gguf", "llama", kind)
    wanted = GGMLQuantizationType[kind]
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.copy_(
                    torch.from_numpy(dequantize(quantize(weight.numpy().astype(np.float32), wanted), wanted))
                )
    got = Ours(tmp_path / "m.gguf").logits(text(40))
    assert (got - reference_logits(model, text(40))).abs().max() < TOLERANCE
