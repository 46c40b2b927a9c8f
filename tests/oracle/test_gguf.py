"""GGUF files of the same weights give the same logits as safetensors, with rows, ties and scaling undone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.engine.numerics import choose_numerics
from ridgeline.engine.startup import Startup
from ridgeline.models.checkpoint import open_checkpoint
from ridgeline.nn.load import load_weights
from ridgeline.quant.stack import Stack
from tests.oracle.ours import Ours
from tests.oracle.reference import reference_logits, reference_model, write_gguf
from tests.oracle.test_families import EXPERTS, GQA, LLAMA3, LONGROPE, TOLERANCE, YARN, scaled, text
from tests.quant.blocks import kernels

CASES: dict[str, tuple[str, str, dict[str, object], dict[str, object]]] = {
    "llama": ("LlamaForCausalLM", "llama", GQA, {}),
    "llama tied": ("LlamaForCausalLM", "llama", GQA | {"tie_word_embeddings": True}, {}),
    "llama of wide heads": ("LlamaForCausalLM", "llama", GQA | {"head_dim": 32}, {}),
    "llama-3.1": ("LlamaForCausalLM", "llama", GQA | LLAMA3, {}),
    "llama linear": (
        "LlamaForCausalLM",
        "llama",
        GQA | scaled("linear", factor=4.0),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "mistral": (
        "MistralForCausalLM",
        "llama",
        GQA | {"sliding_window": 16},
        {"attention.sliding_window": 16},
    ),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", GQA, {}),
    "qwen2 yarn": (
        "Qwen2ForCausalLM",
        "qwen2",
        GQA | scaled("yarn", **YARN),
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
    ),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", GQA | {"head_dim": 32, "tie_word_embeddings": True}, {}),
    "mixtral": ("MixtralForCausalLM", "llama", GQA | {"sliding_window": None, **EXPERTS}, {}),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        "qwen2moe",
        GQA | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, **EXPERTS},
        {},
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        "qwen3moe",
        GQA | {"head_dim": 16, "moe_intermediate_size": 32, "norm_topk_prob": True, **EXPERTS},
        {},
    ),
    "phi-3 longrope": (
        "Phi3ForCausalLM",
        "phi3",
        GQA | LONGROPE,
        {"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": (1 + 3 / 6) ** 0.5},
    ),
    "phi-3": ("Phi3ForCausalLM", "phi3", GQA | {"sliding_window": 13}, {"attention.sliding_window": 13}),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES)
def test_float32_file_equals_the_reference(tmp_path: Path, case: str) -> None:
    """Protects: metadata, names, row order of q and k for both head counts, ties, rotary factors."""
    name, arch, fields, metadata = CASES[case]
    model = reference_model(name, **fields)
    write_gguf(model, tmp_path / "m.gguf", arch, "F32", metadata)
    ours = Ours(tmp_path / "m.gguf")
    assert (ours.logits(text(77)) - reference_logits(model, text(77))).abs().max() < TOLERANCE


def test_experts_stay_packed(tmp_path: Path) -> None:
    """Protects: a stack of quantized experts is packed matrix by matrix, says what the same numbers say
    unpacked, and comes back from the cache of repacked weights to the bit."""
    kernels()
    fields = GQA | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, **EXPERTS}
    write_gguf(reference_model("Qwen2MoeForCausalLM", **fields), tmp_path / "m.gguf", "qwen2moe", "Q8_0")
    ours, checkpoint = Ours(tmp_path / "m.gguf"), open_checkpoint(tmp_path / "m.gguf")
    plain = ours.logits(text(40), [33, *[1] * 7])
    numerics = choose_numerics(EngineConfig(), checkpoint, Startup(WallClock()))
    found = []
    for _ in range(2):
        ours.weights = load_weights(checkpoint, numerics.policy, progress=False, cache_dir=tmp_path / "cache")
        assert isinstance(ours.weights["layers.0.moe.gate_up.weight"], Stack)
        found.append(ours.logits(text(40), [33, *[1] * 7]))
    assert (found[0] - plain).abs().max() < 5e-3 and torch.equal(*found)


def logprob_gap(a: Tensor, b: Tensor, ids: list[int]) -> float:
    """Mean |difference| of the log-probabilities of a text's own tokens, in nat."""
    at = torch.tensor(ids[1:])[:, None]
    return float((a.log_softmax(-1)[:-1].gather(1, at) - b.log_softmax(-1)[:-1].gather(1, at)).abs().mean())


@pytest.mark.parametrize(("kind", "bound"), [("F16", 0.02), ("Q8_0", 0.1)])
def test_sixteen_and_eight_bits_stay_close(tmp_path: Path, kind: str, bound: float) -> None:
    """Protects: a tied llama with fewer KV heads, as GGUF and as safetensors, over 200 tokens."""
    model = reference_model("LlamaForCausalLM", **GQA, tie_word_embeddings=True)
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
    model = reference_model("LlamaForCausalLM", **GQA)
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
