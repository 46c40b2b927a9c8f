"""Protects a step on a GPU's kernels: what surrounds the layers, and models of them, in the interpreter."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.kernels.gpu import open_gpu
from tests.kernels.devices import CUDA, interpreted, on_gpu
from tests.kernels.step_cases import BOTH, CASES
from tests.kernels.triton_cases import poisoned


@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str) -> None:
    assert interpreted("tests.kernels.step_cases", name) == ""


@pytest.mark.parametrize("name", on_gpu(BOTH))
def test_on_the_gpu(name: str) -> None:
    with poisoned():
        BOTH[name](open_gpu(CUDA), torch.bfloat16)
