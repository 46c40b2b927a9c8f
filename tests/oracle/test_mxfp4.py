"""GPT-OSS as it is released: experts in MXFP4 blocks, read like transformers' own reader reads them."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.engine.numerics import choose_numerics
from ridgeline.engine.startup import Startup
from ridgeline.models.checkpoint import open_checkpoint
from ridgeline.nn.load import load_weights
from ridgeline.quant.packed import PackedMatrix
from ridgeline.quant.stack import Stack
from tests.oracle.cases import GQA, TOLERANCE, YARN, scaled
from tests.oracle.oracles import text
from tests.oracle.ours import Ours
from tests.oracle.reference import HIDDEN, reference_logits, reference_model
from tests.quant.blocks import kernels


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    """Protects: the order of the halves of a byte, the scales' bias, and the rows of gate and up; packed for
    the CPU's kernels they are the same numbers to the bit."""
    model = reference_model(
        "gpt_oss", **GQA, head_dim=16, intermediate_size=96, num_local_experts=4, sliding_window=16,
        num_experts_per_tok=2, **scaled("yarn", **YARN, truncate=False))
    model.save_pretrained(tmp_path)
    state, random = load_file(tmp_path / "model.safetensors"), torch.Generator().manual_seed(3)
    for i, layer in enumerate(model.model.layers):
        for name, rows, columns in (("gate_up_proj", 192, HIDDEN), ("down_proj", HIDDEN, 96)):
            shape = (4, rows, columns // 32)
            blocks = torch.randint(0, 256, (*shape, 16), generator=random, dtype=torch.uint8)
            scales = torch.randint(122, 126, shape, generator=random, dtype=torch.uint8)
            weight = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            getattr(layer.mlp.experts, name).data.copy_(weight)
            path = f"model.layers.{i}.mlp.experts.{name}"
            del state[path]
            state |= {f"{path}_blocks": blocks, f"{path}_scales": scales}
    save_file(state, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.norm"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    want, ours = reference_logits(model, text(50)), Ours(tmp_path)
    assert (ours.logits(text(50)) - want).abs().max() < TOLERANCE
    assert (ours.logits(text(50), [45, *[1] * 5]) - want).abs().max() < TOLERANCE
    kernels()
    checkpoint = open_checkpoint(tmp_path)
    numerics = choose_numerics(EngineConfig(), checkpoint, Startup(WallClock()))
    packed = load_weights(checkpoint, numerics.policy, progress=False)["layers.0.moe.gate_up.weight"]
    assert numerics.name == "packed" and isinstance(packed, Stack)
    for matrix, plain in zip(packed.matrices, ours.weights["layers.0.moe.gate_up.weight"], strict=True):
        assert isinstance(matrix, PackedMatrix) and torch.equal(matrix.rows(torch.arange(matrix.n)), plain)
