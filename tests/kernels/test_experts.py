"""Protects the experts' products: in the interpreter anywhere, on a GPU where there is one, in a graph."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.engine.timing import captured
from ridgeline.kernels.experts import deal, multiply
from ridgeline.kernels.experts.reference import multiply_reference
from ridgeline.kernels.gpu import open_gpu
from tests.kernels.devices import CUDA, interpreted, on_gpu
from tests.kernels.experts_cases import CASES
from tests.kernels.triton_cases import close, poisoned, random, tolerance
from tests.kernels.triton_compiled import compile_for_hopper


@pytest.mark.parametrize("name", CASES)
def test_interpreted_in_float32(name: str) -> None:
    assert interpreted("tests.kernels.experts_cases", name) == ""


@pytest.mark.parametrize("name", on_gpu(CASES))
def test_on_the_gpu_in_bfloat16(name: str) -> None:
    with poisoned():
        CASES[name](open_gpu(CUDA), torch.bfloat16)


@pytest.mark.parametrize(("rows", "warps", "stages"), [(16, 4, 4), (128, 8, 3)])
def test_what_hopper_gets(rows: int, warps: int, stages: int, tmp_path: Path) -> None:
    """A row's and a prompt's form, gate and up of 128 experts: on the tensor cores, all in registers."""
    from ridgeline.kernels.experts.triton import experts_kernel

    block_n, block_k = (64, 128) if rows <= 32 else (128, 64)
    constants = dict(K=2048, E=128, EP=128, TOP=8, BM=rows, BN=block_n, BK=block_k, BIAS=False, FACTOR=True,
                     INTERPRET=False)
    types = {"order_ptr": "*i32", "edges_ptr": "*i32", "factor_ptr": "*fp32"}
    made = compile_for_hopper(experts_kernel, tmp_path, constants=constants, descriptors={}, types=types,
                              num_warps=warps, num_stages=stages)
    assert made.local_bytes == 0 and made.shared_bytes <= 227 << 10, made
    assert "wgmma" in made.ptx or "mma.sync" in made.ptx


@pytest.mark.parametrize("tokens", on_gpu((1, 33, 700)))
def test_a_graph_follows_other_choices(tokens: int) -> None:
    """Recorded with some experts, replayed with others."""
    gpu, bf16 = open_gpu(CUDA), torch.bfloat16
    x, weight = random(gpu, bf16, tokens, 256), random(gpu, bf16, 16, 192, 256, scale=1 / 16)
    chosen = torch.zeros(tokens, 2, dtype=torch.int64, device=CUDA)
    kept: list[torch.Tensor] = []
    graph = captured(lambda: kept.append(multiply(gpu, x, weight, deal(chosen, 16), by_token=True)))
    for seed in range(3):
        made = torch.rand(tokens, 16, generator=torch.Generator().manual_seed(seed)).topk(2).indices
        chosen.copy_(made)
        graph.replay()
        wanted = multiply_reference(x.float(), weight.float(), chosen, by_token=True)
        close(kept[-1], wanted, tolerance(bf16))
