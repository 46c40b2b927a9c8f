"""Protects prefill attention: what it computes, what goes to the library and why, what Hopper gets."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.kernels.decode_attention import unfit
from ridgeline.kernels.gpu import Gpu, open_gpu
from ridgeline.kernels.prefill_attention import (
    LIBRARY_TOKENS,
    PAGES,
    Chunk,
    PrefillAttention,
    Tile,
    choose,
    tile_for,
)
from tests.kernels.devices import CUDA, interpreted, on_gpu
from tests.kernels.prefill_cases import CASES, LARGE
from tests.kernels.triton_cases import poisoned
from tests.kernels.triton_compiled import Compiled, compile_for_hopper

BF16 = torch.bfloat16


@pytest.mark.parametrize("name", CASES)
def test_interpreted_in_float32(name: str) -> None:
    """Odd sizes, memory of NaN, windows, sinks, tiles that only some tokens see."""
    assert interpreted("tests.kernels.prefill_cases", name) == ""


@pytest.mark.parametrize("name", on_gpu(CASES | LARGE))
def test_on_the_gpu_in_bfloat16(name: str) -> None:
    with poisoned():
        (CASES | LARGE)[name](open_gpu(CUDA), BF16)


@pytest.mark.parametrize(("chunk", "changed", "path", "reason"), [
    ((0, LIBRARY_TOKENS), {}, "library", "without prefix"),
    ((64, LIBRARY_TOKENS), {}, "paged", "64 tokens of prefix"),
    ((0, LIBRARY_TOKENS - 1), {}, "paged", "share one launch"),
    ((0, 4096), {"window": 4096}, "library", "without prefix"),
    ((0, 4096), {"window": 4095}, "paged", "a window of 4095"),
    ((0, 4096), {"sinks": True}, "paged", "sinks"),
    ((0, 4096), {"cache_dtype": torch.float8_e4m3fn}, "paged", "what is cached"),
    ((0, 4096), {"dtype": torch.float32, "cache_dtype": torch.float32}, "paged", "no fast path"),
    ((0, 4096), {"library": False}, "paged", "no fast path")])
def test_which_path_a_chunk_takes(chunk: tuple[int, int], changed: dict[str, object], path: str,
                                  reason: str) -> None:
    known = {"dtype": BF16, "cache_dtype": BF16, "window": None, "sinks": False, "library": True} | changed
    choice = choose(Chunk(first=0, start=chunk[0], count=chunk[1]), **known)
    assert choice.path == path and reason in choice.reason


def test_what_the_kernel_cannot_serve_is_refused() -> None:
    keys, values = torch.empty(2, 16, 2, 2, 24, device="meta").unbind(2)
    assert "no multiple of 16" in unfit(keys, values, 4)
    keys, values = torch.empty(2, 16, 2, 2, 32, device="meta").unbind(2)
    assert unfit(keys, values, 4) == "" and "do not share" in unfit(keys, values, 3)
    assert "equal strides" in unfit(keys, values.contiguous(), 4)
    assert "float64" in unfit(keys.double(), values, 4)


def compiled(tile: Tile, cache: str, dim: int, folder: Path) -> Compiled:
    from ridgeline.kernels.prefill_attention.triton import prefill_kernel

    constants = dict(HKV=8, G=4, D=dim, DP=dim, P=64, BM=tile.heads, BT=tile.tokens, SINK=False,
                     WINDOW=False, WHOLE=tile.whole, INTERPRET=False)
    page = f"{cache[1:]}[1,1,{tile.tokens},{dim}]"
    return compile_for_hopper(
        prefill_kernel, folder, constants=constants, num_warps=tile.warps, num_stages=tile.stages,
        descriptors={"k_ptr": page, "v_ptr": page} if tile.whole else {},
        types={"chunks_ptr": "*i32", "v_scale": "fp32"} | ({} if tile.whole else dict.fromkeys(
            ("k_ptr", "v_ptr"), cache)))


@pytest.mark.parametrize("dim", [64, 128])
def test_pages_at_once_stay_in_registers(dim: int, tmp_path: Path) -> None:
    """All but a few: it is half again as fast as tiles that need fewer."""
    made = compiled(PAGES, "*bf16", dim, tmp_path)
    assert made.local_bytes <= 152 and 2 * made.shared_bytes <= 227 << 10, made
    assert "wgmma" in made.ptx and made.ptx.count("cp.async.bulk.tensor") >= 4


def test_which_steps_take_pages_at_once() -> None:
    """Long ones, by 16-bit pages of one tile each; none where tiles must be of one size."""
    gpu = Gpu(device=torch.device("cpu"), name="", processors=132, interpret=False, programmatic=True,
              descriptors=True)

    def whole(num_tokens: int, keys: Tensor, gpu: Gpu = gpu) -> bool:
        table = torch.zeros(1, 64, dtype=torch.int32)
        with mock.patch.object(Tensor, "pin_memory", lambda x: x):
            plan = PrefillAttention(gpu).plan([Chunk(first=0, start=1, count=num_tokens)], table, keys, keys,
                                              num_heads=32, dtype=BF16)
        return plan.tile.whole

    pages = torch.empty(3, 8, 64, 128, dtype=BF16).transpose(1, 2)
    assert whole(1056, pages) and not whole(1055, pages)
    assert not whole(4000, pages.contiguous())
    assert not whole(4000, pages.to(torch.float8_e4m3fn))
    assert not whole(4000, torch.empty(3, 8, 16, 128, dtype=BF16).transpose(1, 2))
    assert not whole(4000, pages, replace(gpu, descriptors=False))
    assert not whole(4000, pages, replace(gpu, apart=True))


@pytest.mark.parametrize(("cache", "kv_bytes", "dim"), [("*bf16", 2, 128), ("*fp8e4nv", 1, 128),
                                                        ("*bf16", 2, 256)])
@pytest.mark.parametrize("num_tokens", [64, 8192])
def test_tiles_stay_in_registers(cache: str, kv_bytes: int, dim: int, num_tokens: int,
                                 tmp_path: Path) -> None:
    made = compiled(tile_for(num_tokens, dim, kv_bytes), cache, dim, tmp_path)
    few = 88 if kv_bytes == 1 and num_tokens > 64 else 0  # the large tile is a fifth faster all the same
    assert made.local_bytes <= few, made
    assert "wgmma" in made.ptx and made.shared_bytes <= 227 << 10
