"""Protects decode attention's shared prefixes: read once for their rows, seen by each as its own."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.kernels.cascade import share, tile_heads
from ridgeline.kernels.gpu import open_gpu
from tests.kernels.cascade_cases import CASES
from tests.kernels.devices import CUDA, interpreted, on_gpu
from tests.kernels.triton_cases import poisoned
from tests.kernels.triton_compiled import compile_for_hopper


@pytest.mark.parametrize("name", CASES)
def test_interpreted_in_float32(name: str) -> None:
    assert interpreted("tests.kernels.cascade_cases", name) == ""


@pytest.mark.parametrize("name", on_gpu(CASES))
@pytest.mark.parametrize("programmatic", [False, True], ids=["plain", "PDL"])
def test_on_the_gpu_in_bfloat16(name: str, programmatic: bool) -> None:
    with poisoned():
        CASES[name](open_gpu(CUDA, programmatic=programmatic), torch.bfloat16)


def test_a_prefix_is_cut_in_whole_pieces_for_as_many_rows_as_fit() -> None:
    """A prefix is read once for every 64 query heads."""
    made = share([(range(2, 20), 1100), ([0, 1], 511)], num_rows=21, num_heads=4, piece=512,
                 device=torch.device("cpu"))
    assert made is not None and tile_heads(made) == 64 and int(made.total) == 4
    assert made.members_L.tolist() == list(range(2, 20))
    assert made.work.tolist() == [[0, 16, 0, 512], [0, 16, 512, 1024], [16, 2, 0, 512], [16, 2, 512, 1024]]
    assert made.skip_S.tolist() == [0, 0, *[1024] * 18, 0]
    assert share([([0], 9999), ([1, 2], 100)], num_rows=3, num_heads=4, piece=512,
                 device=torch.device("cpu")) is None


@pytest.mark.parametrize("tokens", [32, 64])
def test_tiles_stay_in_registers(tokens: int, tmp_path: Path) -> None:
    from ridgeline.kernels.cascade.triton import shared_kernel

    constants = dict(HKV=8, G=4, GP=64, D=128, DP=128, R=128, P=64, C=512, BT=tokens, QK_NORM=True, PDL=1,
                     INTERPRET=False)
    made = compile_for_hopper(shared_kernel, tmp_path, constants=constants, descriptors={},
                              types={"members_ptr": "*i32"}, num_warps=8, num_stages=2, launch_pdl=True)
    assert made.local_bytes == 0, made
    assert "wgmma" in made.ptx and "griddepcontrol.wait" in made.ptx
