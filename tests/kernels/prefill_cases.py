"""What prefill attention must do, as cases for the interpreter (float32) and for a GPU (bfloat16)."""

import torch

from ridgeline.kernels.gpu import Gpu
from ridgeline.kernels.prefill_attention import LIBRARY, Chunk, PrefillAttention, Tile
from ridgeline.kernels.prefill_attention.reference import prefill_reference
from ridgeline.kernels.rotate_write import rotate_write
from ridgeline.kernels.rotate_write.reference import rotate_write_reference
from tests.kernels.triton_cases import FP8, Case, Geometry, close, random, tolerance

SMALL = Tile(heads=32, tokens=16, warps=4, stages=2)
PAGES = Tile(heads=64, tokens=64, warps=4, stages=2, whole=True)


def prefill(shape: Geometry, chunks: list[tuple[int, int]], *, window: int | None = None, sinks: bool = False,
            kv_dtype: torch.dtype | None = None, tile: Tile | None = SMALL) -> Case:
    """Chunks of (tokens before, new tokens) against the reference in float32; what nobody may see is NaN."""

    def check(gpu: Gpu, dtype: torch.dtype) -> None:
        width = max(-(-sum(chunk) // shape.page) for chunk in chunks) + 1
        keys, values = shape.pages(gpu, kv_dtype or dtype, len(chunks) * width + 1)
        mixed = torch.randperm(len(keys) - 1, generator=torch.Generator().manual_seed(0)) + 1
        table_SX = mixed.view(len(chunks), width).to(gpu.device, torch.int32)
        placed, first = [], 0
        for start, count in chunks:
            placed.append(Chunk(first=first, start=start, count=count))
            first += count
        qkv_TND = random(gpu, dtype, first, shape.heads + 2 * shape.kv_heads + 1, shape.dim)[:, :-1]
        for row, chunk in enumerate(placed):
            low = 0 if window is None else max(0, chunk.start - window + 1)
            old = random(gpu, dtype, 2, chunk.start, shape.kv_heads, shape.dim)
            new = qkv_TND[chunk.first: chunk.first + chunk.count, shape.heads:].split(shape.kv_heads, 1)
            for side, pages in enumerate((keys, values)):
                entries = torch.cat((old[side], new[side])).to(pages.dtype)[low:]
                at = torch.arange(low, chunk.start + chunk.count, device=gpu.device)
                pages[table_SX[row, at // shape.page].long(), at % shape.page] = entries
        sink = random(gpu, dtype, shape.heads) if sinks else None
        scales = {"k_scale": 0.5, "v_scale": 0.25} if kv_dtype is FP8 else {}
        wanted = prefill_reference(
            qkv_TND[:, : shape.heads], keys, values, table_SX, [(c.first, c.start, c.count) for c in placed],
            scale=shape.dim**-0.5, window=window, sinks_M=sink, **scales)
        attend = PrefillAttention(gpu, **scales)
        plan = attend.plan(placed, table_SX, keys, values, num_heads=shape.heads, dtype=dtype, window=window,
                           sinks=sinks, tile=tile)
        got = attend(qkv_TND, keys, values, plan, scale=shape.dim**-0.5, sinks_M=sink)
        assert got.dtype == dtype
        close(got, wanted.flatten(1), tolerance(dtype))
        if tile is None and dtype is torch.bfloat16:
            assert {choice.path for choice in plan.choices} == {LIBRARY, "paged"}

    return check


def written(gpu: Gpu, dtype: torch.dtype) -> None:
    """New tokens in a float8 cache: in units of the scales, cut to what the type holds."""
    qkv = (random(gpu, dtype, 5, 4 * 16) * 4).to(FP8).to(dtype) / 4  # held exactly: rounding does not show
    qkv[0, 32], qkv[1, 48] = 3e3, -3e3  # a key's and a value's
    still, slots = torch.ones(5, 16, device=gpu.device), torch.tensor([3, 9, 14, 15, 0], device=gpu.device)
    results = []
    for run in (rotate_write, rotate_write_reference):
        keys, values = torch.zeros(2, 4, 4, 1, 16, device=gpu.device).to(FP8).unbind(0)
        run(qkv.clone(), keys, values, slots, still, 0 * still, num_heads=2, k_scale=0.25, v_scale=0.125)
        results.append((keys.float(), values.float()))
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want) and got.abs().max() == torch.finfo(FP8).max


CASES: dict[str, Case] = {
    "chunks with and without prefix": prefill(Geometry(heads=4, kv_heads=2, dim=32),
                                              [(0, 5), (37, 20), (16, 1), (0, 1)]),
    "head-major pages of several tiles, sinks": prefill(
        Geometry(heads=3, kv_heads=1, dim=64, page=64, head_major=True), [(0, 70), (64, 9)], sinks=True),
    "pages at once": prefill(Geometry(heads=4, kv_heads=2, dim=32, page=64, head_major=True),
                             [(0, 70), (64, 9), (130, 40)], tile=PAGES),
    "pages at once, a window, sinks": prefill(
        Geometry(heads=4, kv_heads=2, dim=32, page=64, head_major=True), [(100, 50), (0, 30)], window=37,
        sinks=True, tile=PAGES),
    "window": prefill(Geometry(heads=4, kv_heads=4, dim=16), [(0, 40), (50, 13)], window=24),
    "window of less than a tile, odd head and page, sinks": prefill(
        Geometry(heads=2, kv_heads=1, dim=80, page=24), [(35, 20)], window=7, sinks=True),
    "wide group": prefill(Geometry(heads=20, kv_heads=1, dim=16), [(3, 4)]),
    "float8 cache, new tokens": written,
    "float8 cache": prefill(Geometry(heads=2, kv_heads=1, dim=32), [(20, 30)], kv_dtype=FP8),
}
LARGE: dict[str, Case] = {
    "whole prompts beside chunks": prefill(Geometry(heads=8, kv_heads=2, dim=128, page=64, head_major=True),
                                           [(0, 4200), (700, 300), (0, 130)], tile=None),
}
