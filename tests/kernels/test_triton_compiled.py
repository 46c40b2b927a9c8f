"""Protects what the shipped configurations become on Hopper: no spills, tiles that fit, overlap."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.kernels.decode_attention import Tile, tile_for
from ridgeline.kernels.decode_linear import spread
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
    constants |= dict(BM=rows, SPLIT=choice.split, TM=1, SPREAD=spread(rows), INTERPRET=False)
    if choice.form == "dot":
        return compile_for_hopper(kernels.dot_kernel, folder, constants=constants | {"NORM": norm},
                                  descriptors={},
                                  num_stages=choice.stages, **options)
    tiles = {"x_desc": f"bf16[{rows},{choice.block_k}]", "w_desc": f"bf16[{choice.block_n},{choice.block_k}]"}
    return compile_for_hopper(kernels.tma_kernel, folder, constants=constants, descriptors=tiles,
                              num_stages=choice.stages, **options)


def attention(dim: int, tile: Tile, folder: Path, pdl: int, cache: str) -> Compiled:
    from ridgeline.kernels.decode_attention.triton import decode_kernel

    constants = dict(HKV=8, G=4, GP=16, D=dim, DP=1 << (dim - 1).bit_length(), R=dim, P=64, C=64,
                     BT=tile.tokens, NP=4, GN=2, SHARED=False, QK_NORM=True, SINK=False, WINDOW=False,
                     PDL=pdl, INTERPRET=False)
    return compile_for_hopper(decode_kernel, folder, constants=constants, descriptors={},
                              types={"k_ptr": cache, "v_ptr": cache}, num_warps=tile.warps,
                              num_stages=tile.stages, maxnreg=tile.registers, launch_pdl=pdl > 0)


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


@pytest.mark.parametrize(("dim", "heads", "cache", "pdl"), [
    (128, 8, "*bf16", 2), (128, 512, "*bf16", 2), (80, 512, "*bf16", 1), (128, 4096, "*bf16", 2),
    (256, 8, "*bf16", 2), (256, 512, "*bf16", 2), (128, 8, "*fp8e4nv", 2), (128, 4096, "*fp8e4nv", 2)])
def test_attention_programs_share_a_processor(dim: int, heads: int, cache: str, pdl: int,
                                              tmp_path: Path) -> None:
    """With the registers that are left to each, few values around the loop wait in local memory. While a tile
    is used the others of its stages arrive, each in a buffer of its own. Entries of 8 bits go by float16."""
    kv_bytes = 1 if "fp8" in cache else 2
    tile = tile_for(group=4, dim=dim, kv_bytes=kv_bytes, heads=heads)
    made = attention(dim, tile, tmp_path, pdl, cache)
    assert made.registers * 32 * tile.warps * tile.programs <= 65536
    assert made.local_bytes <= (0 if tile.programs == 2 else 96), made
    assert 2 * tile.tokens * dim * kv_bytes * (tile.stages - 1) <= made.shared_bytes
    assert made.shared_bytes <= SHARED_LIMIT // tile.programs
    assert ("griddepcontrol.wait" in made.ptx) == (pdl > 0)
    assert "cp.async" in made.ptx
    assert ("m16n8k16.row.col.f32.f16.f16.f32" in made.ptx) == (kv_bytes == 1)
    assert ("m16n8k16.row.col.f32.bf16.bf16.f32" in made.ptx) == (kv_bytes == 2)
