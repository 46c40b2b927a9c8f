"""Protects what the Triton kernels compute: in the interpreter anywhere, on a GPU where there is one."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.base.errors import ConfigError
from ridgeline.bench.chain import Chain
from ridgeline.engine.timing import captured
from ridgeline.kernels.decode_attention import MAX_DIM, tile_for, unfit
from ridgeline.kernels.gpu import open_gpu
from ridgeline.models.checkpoint import open_shape
from tests.kernels.devices import CUDA, interpreted, on_gpu
from tests.kernels.triton_cases import CASES, poisoned

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", CASES)
def test_interpreted_in_float32(name: str) -> None:
    """Odd sizes, memory of NaN, idle rows, windows, sinks, several pieces; locks go back to zero."""
    assert interpreted("tests.kernels.triton_cases", name) == ""


@pytest.mark.parametrize("name", on_gpu(CASES))
@pytest.mark.parametrize("programmatic", [False, True], ids=["plain", "PDL"])
def test_on_the_gpu_in_bfloat16(name: str, programmatic: bool) -> None:
    with poisoned():
        CASES[name](open_gpu(CUDA, programmatic=programmatic), torch.bfloat16)


@pytest.mark.parametrize("rows", on_gpu((1, 3, 20, 100)))
def test_overlapped_kernels_see_what_those_before_them_wrote(rows: int) -> None:
    """As a graph replayed back to back, where programmatic launch overlaps most: the bits of one by one."""
    spec = open_shape("qwen3-0.6b", overrides={"num_hidden_layers": 6, "vocab_size": 4096}).spec
    logits = []
    for programmatic in (False, True):
        torch.manual_seed(0)
        chain = Chain(open_gpu(CUDA, programmatic=programmatic), spec, context=700, rows=rows)
        kept: list[Tensor] = []
        graph = captured(lambda kept=kept, chain=chain: kept.append(chain.step()))
        for _ in range(20):
            graph.replay()
        logits.append(kept[-1].clone())
    assert logits[0].isfinite().all() and torch.equal(*logits)


def test_a_cpu_is_no_gpu() -> None:
    """Outside of the interpreter, nobody runs kernels on a CPU by mistake; the reason is for the log."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("this process interprets")
    with pytest.raises(ConfigError, match="no GPU kernels: the device is a CPU"):
        open_gpu(torch.device("cpu"))


@pytest.mark.parametrize(("dim", "heads", "rotary", "reason"), [
    (24, 4, 24, "no multiple of 16"), (MAX_DIM + 16, 4, 16, "no multiple of 16"), (64, 3, 64, "do not share"),
    (64, 256, 64, "do not share"), (64, 4, 80, "cannot turn"), (64, 4, 64, "")])
def test_what_the_kernel_cannot_serve_is_refused(dim: int, heads: int, rotary: int, reason: str) -> None:
    keys, values = torch.empty(2, 16, 2, 2, dim, device="meta").unbind(2)
    assert reason in unfit(keys, values, heads, rotary) and bool(reason) == bool(unfit(keys, values, heads,
                                                                                       rotary))


def test_pages_of_other_strides_or_types_are_refused() -> None:
    pages = torch.empty(2, 16, 2, 2, 32, device="meta")
    keys, values = pages.unbind(2)
    assert "equal strides" in unfit(keys, values.contiguous(), 4, 32)
    assert "float64" in unfit(keys.double(), values.double(), 4, 32)


@pytest.mark.parametrize("heads", [8, 512, 4096])
@pytest.mark.parametrize("group", [1, 4, 20, 64])
@pytest.mark.parametrize(("dim", "kv_bytes"), [(16, 4), (80, 2), (128, 1), (128, 2), (256, 2), (256, 4)])
def test_attention_tiles_fit(group: int, dim: int, kv_bytes: int, heads: int) -> None:
    """All programs of a processor run at once: in its shared memory, with registers enough. A tile is used
    while the others of its stages arrive in buffers."""
    tile = tile_for(group=group, dim=dim, kv_bytes=kv_bytes, heads=heads)
    width = 1 << (dim - 1).bit_length()
    assert 2 * tile.tokens * width * kv_bytes * (tile.stages - 1) * tile.programs <= 220 << 10
    assert tile.programs >= 1 and 160 <= tile.registers <= 65536 // (32 * tile.warps * tile.programs)
