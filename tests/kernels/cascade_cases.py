"""What shared prefixes must leave as it is: cases for the interpreter (float32) and for a GPU (bfloat16)."""

from dataclasses import replace

import torch

from ridgeline.kernels.cascade import share
from ridgeline.kernels.decode_attention import DecodeAttention, Rows, Tile
from ridgeline.kernels.decode_attention.reference import decode_reference
from ridgeline.kernels.gpu import Gpu
from tests.kernels.triton_cases import Case, Geometry, close, random, tolerance

LENS = [150, 70, 0, 90, 200, 129, 140]
GROUPS = [([0, 3, 6], 80), ([4, 5], 128), ([1], 64)]  # 80 is no multiple of a piece; one row shares nothing
PIECE, TILE = 32, Tile(tokens=16, warps=2, stages=2, programs=2)


def shared(shape: Geometry, *, sinks: bool = False, qk_norm: bool = False) -> Case:
    """Rows with and without prefixes beside an idle one, against the plain reference and the plain path."""

    def check(gpu: Gpu, dtype: torch.dtype) -> None:
        width = -(-max(LENS) // shape.page)
        keys, values = shape.pages(gpu, dtype, len(LENS) * width)
        mixed = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0))
        table_SX = mixed.view(len(LENS), width)
        for group, tokens in GROUPS:
            table_SX[group, : tokens // shape.page] = table_SX[group[0], : tokens // shape.page].clone()
        for row, length in enumerate(LENS):
            for at in range(length - 1):
                made = random(gpu, dtype, 2, shape.kv_heads, shape.dim + at + row)[..., : shape.dim]
                place = int(table_SX[row, at // shape.page]), at % shape.page
                keys[place], values[place] = made
        angles = random(gpu, torch.float32, len(LENS), shape.dim // 2)
        sines = torch.cat((-angles.sin(), angles.sin()), 1)
        rows = Rows(lens_S=torch.tensor(LENS, dtype=torch.int32, device=gpu.device),
                    table_SX=table_SX.to(gpu.device, torch.int32),
                    cos_SR=torch.cat((angles.cos(), angles.cos()), 1), sin_SR=sines)
        qkv = random(gpu, dtype, len(LENS), (shape.heads + 2 * shape.kv_heads) * shape.dim)
        options = {"scale": shape.dim**-0.5, "eps": 1e-6,
                   "sinks_M": random(gpu, dtype, shape.heads) if sinks else None}
        options |= {name: random(gpu, dtype, shape.dim) for name in ("q_norm", "k_norm") if qk_norm}
        wanted = decode_reference(qkv.float(), keys.clone(), values.clone(), rows.lens_S, rows.table_SX,
                                  rows.cos_SR, rows.sin_SR, **options)
        attend = DecodeAttention(gpu, max_rows=len(LENS), max_kv_heads=shape.kv_heads)
        common = share(GROUPS, num_rows=len(LENS), num_heads=shape.heads // shape.kv_heads, piece=PIECE,
                       device=gpu.device)
        items = []
        for prefixes in (None, common, common):  # the third finds the locks as the second left them
            plan = attend.plan(rows, keys, values, num_heads=shape.heads, tile=replace(TILE), shared=prefixes)
            torch.zeros(1, device=gpu.device)
            got = attend(qkv, keys, values, plan, **options)
            live = rows.lens_S > 0
            close(got[live], wanted[live], tolerance(dtype))
            assert attend.locks.sum() == 0
            items.append(int(plan.share[0]) // shape.kv_heads)
        assert items == [52, 24, 24], "tiles that are read by a row alone"

    return check


CASES: dict[str, Case] = {
    "groups of three and two": shared(Geometry(heads=6, kv_heads=2, dim=32)),
    "qk-norm, sinks, head-major": shared(Geometry(heads=4, kv_heads=1, dim=64, page=16, head_major=True),
                                         sinks=True, qk_norm=True),
    "a wide group: two items": shared(Geometry(heads=32, kv_heads=1, dim=16)),
}
