"""What every Triton kernel must do, as cases for the interpreter (float32) and for a GPU (bfloat16)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgeline.bench.chain import Chain, linear_shapes
from ridgeline.kernels.decode_attention import DecodeAttention, Rows, Tile, tile_for
from ridgeline.kernels.decode_attention.reference import decode_reference
from ridgeline.kernels.decode_linear import Call, DecodeLinears
from ridgeline.kernels.decode_linear.tuning import Choice, Entry, Tuning
from ridgeline.kernels.gpu import Gpu
from ridgeline.models.checkpoint import open_shape

Case = Callable[[Gpu, torch.dtype], None]


def tolerance(dtype: torch.dtype) -> float:
    """Of the largest error, as a share of the largest value."""
    return 2e-5 if dtype is torch.float32 else 2e-2


def random(gpu: Gpu, dtype: torch.dtype, *shape: int, scale: float = 1.0) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (made * scale).to(gpu.device, dtype)


def close(got: Tensor, wanted: Tensor, limit: float) -> None:
    assert got.shape == wanted.shape and not got.isnan().any()
    error = (got.float() - wanted.float()).abs().max() / wanted.float().abs().max()
    assert error < limit, f"error {error:.2g}, allowed {limit}"


@contextmanager
def poisoned() -> Iterator[None]:
    """torch.empty gives NaN: whatever reads before it writes shows."""
    torch.set_deterministic_debug_mode("warn")  # unlike its twin, without the import of a compiler
    assert torch.empty(3).isnan().all()
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def linear(choice: Choice, rows: int, *, n: int = 70, k: int = 96, norm: bool = False, gated: bool = False,
           bias: bool = False, residual: bool = False) -> Case:
    """One linear by one choice against the reference in float32; odd n and k, x a slice of something
    wider."""

    def check(gpu: Gpu, dtype: torch.dtype) -> None:
        linears, out_rows = DecodeLinears(gpu, Tuning.of("none", [])), n * (2 if gated else 1)
        call = Call(
            x_MK=random(gpu, dtype, rows, k + 8)[:, :k], weight=random(gpu, dtype, out_rows, k,
                                                                       scale=k**-0.5),
            norm_K=random(gpu, dtype, k) if norm else None, eps=1e-5, gated=gated,
            bias=random(gpu, dtype, out_rows) if bias else None,
            residual_MN=random(gpu, dtype, rows, n) if residual else None)
        wide = {name: value.float() for name in ("x_MK", "weight", "norm_K", "bias", "residual_MN")
                if (value := getattr(call, name)) is not None}
        for _ in range(2):  # the second finds the locks as the first left them
            got = linears.run(call, choice)
            close(got, replace(call, **wide).reference(), tolerance(dtype))
            assert got.dtype == dtype and linears.locks.sum() == 0

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """heads: query heads; head_major: pages [2, G, P, D] as against [P, 2, G, D]."""

    heads: int
    kv_heads: int
    dim: int
    page: int = 16
    head_major: bool = False

    def pages(self, gpu: Gpu, dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values [N, P, G, D] of NaN."""
        if self.head_major:
            arena = torch.empty(count, 2, self.kv_heads, self.page, self.dim, dtype=dtype, device=gpu.device)
            keys, values = arena.transpose(2, 3).unbind(1)
        else:
            arena = torch.empty(count, self.page, 2, self.kv_heads, self.dim, dtype=dtype, device=gpu.device)
            keys, values = arena.unbind(2)
        arena.fill_(torch.nan)
        return keys, values


def attention(shape: Geometry, lens: list[int], *, window: int | None = None, sinks: bool = False,
              qk_norm: bool = False, rotary: int | None = None, kv_dtype: torch.dtype | None = None,
              tile: Tile | None = None) -> Case:
    """Rows of these lengths against the reference in float32; what no row may see is NaN."""

    def check(gpu: Gpu, dtype: torch.dtype) -> None:
        width, rotated = max(-(-n // shape.page) for n in lens) + 1, rotary or shape.dim
        keys, values = shape.pages(gpu, kv_dtype or dtype, len(lens) * width + 1)
        mixed = torch.randperm(len(keys) - 1, generator=torch.Generator().manual_seed(0)) + 1
        table_SX = mixed.view(len(lens), width).to(gpu.device, torch.int32)
        for row, length in enumerate(lens):
            for place in range(0 if window is None else max(0, length - window), max(length - 1, 0)):
                at = int(table_SX[row, place // shape.page]), place % shape.page
                made = random(gpu, dtype, 2, shape.kv_heads, shape.dim + place + row)[..., : shape.dim]
                keys[at], values[at] = made[0].to(keys.dtype), made[1].to(keys.dtype)
        angles = random(gpu, torch.float32, len(lens), rotated // 2)
        cos_SR, half = torch.cat((angles.cos(), angles.cos()), 1), angles.sin()
        sin_SR = torch.cat((-half, half), 1)
        rows = Rows(lens_S=torch.tensor(lens, dtype=torch.int32, device=gpu.device), table_SX=table_SX,
                    cos_SR=cos_SR, sin_SR=sin_SR)
        qkv = random(gpu, dtype, len(lens), (shape.heads + 2 * shape.kv_heads) * shape.dim + 16)[:, :-16]
        scales = {}
        if kv_dtype is FP8:  # entries that it holds exactly, so that rounding does not show
            scales = {"k_scale": 0.5, "v_scale": 0.25}
            qkv, cos_SR, sin_SR = (qkv * 2).to(FP8).to(dtype) / 2, torch.ones_like(cos_SR), sin_SR * 0
            rows = replace(rows, cos_SR=cos_SR, sin_SR=sin_SR)
        norms = {name: random(gpu, dtype, shape.dim) for name in ("q_norm", "k_norm") if qk_norm}
        sink = random(gpu, dtype, shape.heads) if sinks else None
        kept_keys, kept_values = keys.clone(), values.clone()
        wanted = decode_reference(
            qkv.float(), kept_keys, kept_values, rows.lens_S, table_SX, cos_SR, sin_SR, scale=shape.dim**-0.5,
            window=window, eps=1e-6, sinks_M=sink, **norms, **scales)
        attend = DecodeAttention(gpu, max_rows=len(lens), max_kv_heads=shape.kv_heads, **scales)
        live = rows.lens_S > 0
        for _ in range(2):  # the second writes what the first wrote
            plan = attend.plan(rows, keys, values, num_heads=shape.heads, window=window, tile=tile)
            torch.zeros(1, device=gpu.device)
            got = attend(qkv, keys, values, plan, scale=shape.dim**-0.5, eps=1e-6, sinks_M=sink, **norms)
            close(got[live], wanted[live], tolerance(dtype))
            assert got.dtype == dtype and attend.locks.sum() == 0
            for mine, theirs in ((keys, kept_keys), (values, kept_values)):
                mine, theirs = mine.to(dtype), theirs.to(dtype)
                assert torch.equal(mine.isnan(), theirs.isnan()), "wrote elsewhere than the new entries"
                close(mine.nan_to_num(), theirs.nan_to_num(), tolerance(dtype))

    return check


def chain(gpu: Gpu, dtype: torch.dtype) -> None:
    """A whole step of a tiny model in bfloat16, its linears by kernels and by torch."""
    spec = open_shape("qwen3-0.6b", overrides=TINY).spec
    plain = Tuning.of("plain", [Entry(shape=s, rows=rows, choice=Choice(form="torch"), time_us=1.0)
                                for s in linear_shapes(spec).values() for rows in (1, 16)])
    for rows in (1, 2):
        logits = []
        for tuning in (plain, Tuning.of("none", [])):
            torch.manual_seed(0)
            logits.append(Chain(gpu, spec, context=20, rows=rows, tuning=tuning).step())
        close(logits[1], logits[0].float(), tolerance(torch.bfloat16))


FP8 = torch.float8_e4m3fn
TINY = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 32}
SMALL = Tile(tokens=32, warps=2, stages=2, programs=2)
def gate(gpu: Gpu, dtype: torch.dtype) -> None:
    """What follows cuBLAS: rows longer than what is gated of them, of more than a program's outputs."""
    n = 2051
    y = random(gpu, dtype, 3, 2 * n + 8)[:, : 2 * n]
    call = Call(x_MK=random(gpu, dtype, 3, 16), weight=random(gpu, dtype, 2 * n, 16), gated=True)
    wanted = torch.nn.functional.silu(y[:, :n].float()) * y[:, n:].float()
    close(DecodeLinears(gpu, Tuning.of("none", []))._gate(y, call), wanted, tolerance(dtype))


CASES: dict[str, Case] = {
    "linear gemv plain": linear(Choice(form="gemv", block_n=4, block_k=64), 1, k=256),
    "linear gemv norm bias, ragged": linear(Choice(form="gemv", block_n=8, block_k=64), 1, norm=True,
                                            bias=True),
    "linear gemv gated": linear(Choice(form="gemv", block_n=8, block_k=64, trigger="start"), 1, norm=True,
                                gated=True,
                                bias=True, residual=True),
    "linear gemv norm apart": linear(Choice(form="gemv", block_n=8, block_k=128, norm_apart=True), 1,
                                     norm=True),
    "linear dot plain": linear(Choice(form="dot", block_n=16, block_k=32), 2, n=32),
    "linear dot split": linear(Choice(form="dot", block_n=32, block_k=32, split=2), 3, norm=True, gated=True,
                               bias=True, residual=True),
    "linear dot split in uneven parts": linear(Choice(form="dot", block_n=32, block_k=32, split=2), 17, k=90,
                                               residual=True),
    "linear dot norm apart": linear(Choice(form="dot", block_n=64, block_k=32, norm_apart=True), 5,
                                    norm=True),
    "linear tma": linear(Choice(form="tma", block_n=32, block_k=64), 4, gated=True, bias=True),
    "linear tma split": linear(Choice(form="tma", block_n=64, block_k=64, split=2, norm_apart=True), 3, n=64,
                               k=320, norm=True, residual=True),
    "linear tma a tile of rows and a part": linear(
        Choice(form="tma", block_n=64, block_k=64, split=2, block_m=16), 21, k=320, residual=True),
    "linear tma without 16-byte rows": linear(Choice(form="tma", block_n=64, block_k=32), 2, k=90),
    "gate": gate,
    "linear cuBLAS": linear(Choice(form="torch"), 130, norm=True, gated=True),
    "attention many lengths": attention(Geometry(heads=4, kv_heads=2, dim=32), [1, 63, 0, 64, 65, 150],
                                        tile=SMALL),
    "attention equal lengths": attention(Geometry(heads=4, kv_heads=2, dim=32), [150, 147, 0, 150, 129, 150],
                                         tile=SMALL),
    "attention head-major pages of a tile and more": attention(
        Geometry(heads=3, kv_heads=1, dim=64, page=64, head_major=True), [130, 7], sinks=True, qk_norm=True,
        tile=SMALL),
    "attention window": attention(Geometry(heads=4, kv_heads=4, dim=16), [100, 33, 161], window=48,
                                  tile=SMALL),
    "attention window of one piece and sinks": attention(
        Geometry(heads=2, kv_heads=1, dim=16, page=32), [90, 20], window=20, sinks=True, tile=SMALL),
    "attention odd head, part of it turned": attention(
        Geometry(heads=2, kv_heads=1, dim=80, page=24), [70, 5], rotary=32, qk_norm=True, sinks=True,
        tile=SMALL),
    "attention heads of 256": attention(
        Geometry(heads=4, kv_heads=2, dim=256, page=16), [70, 0, 33, 5], qk_norm=True, sinks=True, window=40,
        tile=tile_for(group=2, dim=256, kv_bytes=2)),
    "attention wide group": attention(Geometry(heads=20, kv_heads=1, dim=16), [80], tile=SMALL),
    "attention float32 cache, default tile": attention(
        Geometry(heads=4, kv_heads=2, dim=64), [40, 1], kv_dtype=torch.float32),
    "attention float8 cache": attention(
        Geometry(heads=4, kv_heads=2, dim=32), [40, 1, 130], kv_dtype=FP8, tile=SMALL),
    "attention tile of many rows": attention(
        Geometry(heads=4, kv_heads=2, dim=128, page=64, head_major=True), [130, 0, 0, 33, 64], qk_norm=True,
        tile=tile_for(group=2, dim=128, kv_bytes=2, heads=4096)),
    "attention float8 cache, tile of many rows": attention(
        Geometry(heads=4, kv_heads=2, dim=128, page=64), [130, 0, 17, 64], kv_dtype=FP8,
        tile=tile_for(group=2, dim=128, kv_bytes=1, heads=4096)),
    "chain of a step": chain,
}  # fmt: skip
