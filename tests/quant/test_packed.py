"""Protects what a checkpoint's weights become in memory: kept to the bit or rounded by a known bound, the
same again from the disk cache, and never held in a format that cannot hold them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.quant.packed import PackedMatrix, Packing32
from tests.quant.blocks import Plain, Source, kernels, random_part, values

CPU = torch.device("cpu")
ROUNDED = ("q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")


@pytest.fixture
def packing() -> Packing32:
    return Packing32(kernels(), planes=2)


def unpacked(matrix: PackedMatrix | Tensor) -> Tensor:
    assert isinstance(matrix, PackedMatrix)
    return matrix.rows(torch.arange(matrix.n))


@pytest.mark.parametrize(("kind", "bits"), [("q4_0", 4), ("q4_1", 4), ("q8_0", 8)])
def test_kept_to_the_bit(packing: Packing32, kind: str, bits: int) -> None:
    part = random_part(kind, 50, 96)
    matrix = packing.pack(Source((part,)), CPU)
    assert isinstance(matrix, PackedMatrix) and (matrix.format, matrix.n, matrix.k) == (bits, 50, 96)
    assert torch.equal(unpacked(matrix), values(part))


def test_stacked_parts_keep_their_bits(packing: Packing32) -> None:
    """q, k and v in one matrix; both kinds of four bits share a format."""
    parts = (random_part("q4_0", 33, 64, 1), random_part("q4_1", 16, 64, 2), random_part("q4_0", 7, 64, 3))
    matrix = packing.pack(Source(parts), CPU)
    assert isinstance(matrix, PackedMatrix) and matrix.format == 4
    assert torch.equal(unpacked(matrix), torch.cat([values(part) for part in parts]))


def rounded(matrix: PackedMatrix | Tensor, exact: Tensor) -> bool:
    """Off by half a step of their group (its largest number over 127), and what fp16 makes of tiny steps."""
    assert isinstance(matrix, PackedMatrix) and matrix.format == 8
    step = exact.view(len(exact), -1, 32).abs().amax(-1).repeat_interleave(32, 1) / 127
    return bool(((unpacked(matrix) - exact).abs() <= 0.502 * step + 4e-6).all())


@pytest.mark.parametrize("kind", ROUNDED)
def test_other_kinds_become_eight_bits(packing: Packing32, kind: str) -> None:
    """Under 0.4 % of the largest number of 32."""
    part = random_part(kind, 40, 512)
    assert rounded(packing.pack(Source((part,)), CPU), values(part))


def test_parts_of_unlike_kinds_become_eight_bits(packing: Packing32) -> None:
    """As where a file keeps v in more bits than q and k."""
    kinds = ("q4_1", "q6_k", "q8_0")
    parts = tuple(random_part(kind, 16, 256, seed) for seed, kind in enumerate(kinds))
    assert rounded(packing.pack(Source(parts), CPU), torch.cat([values(part) for part in parts]))


def test_groups_of_zeros_and_of_very_small_numbers(packing: Packing32) -> None:
    """Scales below what fp16 holds give zeros and small errors, not NaN."""
    part = random_part("q5_0", 16, 64)
    scales = np.linspace(0, 2e-6, 32).astype(np.float16)
    part.raw_RB.reshape(-1, 22)[:, :2] = scales.view(np.uint8).reshape(-1, 2)
    assert rounded(packing.pack(Source((part,)), CPU), values(part))


def test_q4_0_scales_too_large_for_its_minimum(packing: Packing32) -> None:
    """The minimum is -8 scales in fp16: past 8188 it would be infinite, so the weight becomes eight bits."""
    part = random_part("q4_0", 16, 64)
    part.raw_RB.reshape(-1, 18)[5, :2] = np.array([9000.0], np.float16).view(np.uint8)
    assert rounded(packing.pack(Source((part,)), CPU), values(part))


def test_plain_numbers_stay_float32(packing: Packing32) -> None:
    """Nothing is quantized that the checkpoint does not hold quantized."""
    weight = torch.randn(20, 64)
    assert packing.pack(Plain(weight), CPU) is not None
    assert torch.equal(packing.pack(Plain(weight), CPU), weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0", "q6_k"])
@pytest.mark.parametrize("rows", [16, 37])
def test_the_same_again_from_disk(packing: Packing32, tmp_path: Path, kind: str, rows: int) -> None:
    """Tensors that come back mapped, read-only and anywhere in memory make an equal matrix."""
    source = Source((random_part(kind, rows, 256),))
    matrix = packing.pack(source, CPU)
    assert isinstance(matrix, PackedMatrix)
    (tmp_path / "tiles").write_bytes(b"x" + matrix.tensors()["tiles"].numpy().tobytes())
    tiles = torch.from_numpy(np.memmap(tmp_path / "tiles", np.uint8, "c", 1))
    again = packing.restore(source.param, {"tiles": tiles}, CPU)
    assert isinstance(again, PackedMatrix) and again.tiles.data_ptr() == tiles.data_ptr(), "not copied"
    assert (again.format, again.n, again.k, again.planes) == (matrix.format, rows, 256, matrix.planes)
    x = torch.randn(30, 256)
    assert torch.equal(again.apply(x, 30), matrix.apply(x, 30))


def test_plain_numbers_come_back_from_disk(packing: Packing32) -> None:
    weight = torch.randn(20, 64)
    assert torch.equal(packing.restore(Plain(weight).param, {"weight": weight}, CPU), weight)  # type: ignore[arg-type]
