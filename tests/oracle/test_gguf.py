"""GGUF files of the same weights give the same logits as safetensors, with rows, ties and scaling undone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

from tests.oracle.ours import Ours
from tests.oracle.reference import reference_logits, reference_model, write_gguf
from tests.oracle.test_families import GQA, LLAMA3, LONGROPE, TOLERANCE, YARN, scaled, text

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
