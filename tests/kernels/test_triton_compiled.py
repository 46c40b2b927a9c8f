"""Protects what the shipped configurations become on Hopper: no spills, tiles that fit, overlap."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.kernels.decode_attention import tile_for
from ridgeline.kernels.decode_linear.tuning import LinearShape, tuning_for
from tests.kernels.triton_compiled import Compiled, compile_for_hopper

SHARED_LIMIT = 227 << 10
GATE_UP = LinearShape(n=14336, k=4096, norm=True, gated=True)
DOWN = LinearShape(n=4096, k=14336)


def linear(shape: LinearShape, rows: int, folder: Path, pdl: int) -> Compiled:
    """The kernel that serves this shape on an H200."""
    from ridgeline.kernels.decode_linear import triton as kernels

    choice = tuning_for("NVIDIA H200").choose(shape, rows)
    norm = shape.norm and not choice.norm_apart
    constants: dict[str, Any] = dict(K=shape.k, BN=choice.block_n, BK=choice.block_k, GATED=shape.gated,
                                     ADD=not shape.gated, BIAS=False, PDL=pdl)
    options = dict(num_warps=choice.warps, launch_pdl=pdl > 0)
    if choice.form == "gemv":
        return compile_for_hopper(kernels.gemv_kernel, folder, constants=constants | {"NORM": norm},
                                  descriptors={},
                                  **options)
    constants |= dict(BM=rows, SPLIT=choice.split, TM=1, INTERPRET=False)
    if choice.form == "dot":
        return compile_for_hopper(kernels.dot_kernel, folder, constants=constants | {"NORM": norm},
                                  descriptors={},
                                  num_stages=choice.stages, **options)
    tiles = {"x_desc": f"bf16[{rows},{choice.block_k}]", "w_desc": f"bf16[{choice.block_n},{choice.block_k}]"}
    return compile_for_hopper(kernels.tma_kernel, folder, constants=constants, descriptors=tiles,
                              num_stages=choice.stages, **options)


def attention(dim: int, folder: Path, pdl: int) -> Compiled:
    from ridgeline.kernels.decode_attention.triton import decode_kernel

    tile = tile_for(group=4, dim=dim, kv_bytes=2)
    constants = dict(HKV=8, G=4, GP=16, D=dim, DP=1 << (dim - 1).bit_length(), R=dim, P=64, C=64,
                     BT=tile.tokens, NP=4, GN=2, SHARED=False, QK_NORM=True, SINK=False, WINDOW=False,
                     PDL=pdl, INTERPRET=False)
    return compile_for_hopper(decode_kernel, folder, constants=constants, descriptors={},
                              num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
                              launch_pdl=pdl > 0)


@pytest.mark.parametrize(("shape", "rows", "pdl"), [(GATE_UP, 1, 2), (GATE_UP, 16, 1), (DOWN, 128, 1), (DOWN,
                                                                                                        32,
                                                                                                        0)],
                         ids=["gemv", "dot", "tma", "dot without PDL"])
def test_linears_keep_their_tiles_in_registers(shape: LinearShape, rows: int, pdl: int,
                                               tmp_path: Path) -> None:
    made = linear(shape, rows, tmp_path, pdl)
    assert made.local_bytes == 0, made
    assert made.shared_bytes <= SHARED_LIMIT
    assert ("griddepcontrol.wait" in made.ptx) == (pdl > 0)
    assert ("griddepcontrol.launch_dependents" in made.ptx) == (pdl > 0)
    assert rows == 1 or "wgmma" in made.ptx or "mma.sync" in made.ptx


@pytest.mark.parametrize(("dim", "pdl"), [(128, 2), (80, 1)])
def test_attention_programs_share_a_processor(dim: int, pdl: int, tmp_path: Path) -> None:
    """With the registers that are left to each, a few values around the loop wait in local memory."""
    made, tile = attention(dim, tmp_path, pdl), tile_for(group=4, dim=dim, kv_bytes=2)
    assert made.registers * 32 * tile.warps * tile.programs <= 65536 and made.local_bytes <= 96, made
    assert made.shared_bytes <= SHARED_LIMIT // tile.programs
    assert ("griddepcontrol.wait" in made.ptx) == (pdl > 0)
    assert "mma.sync" in made.ptx and "cp.async" in made.ptx
