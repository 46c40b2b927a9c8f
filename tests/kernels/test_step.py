"""Protects a step on a GPU's kernels: what surrounds the layers, and models of them, in the interpreter."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.kernels.gpu import open_gpu, why_none
from tests.kernels.interpreted import errors_of
from tests.kernels.step_cases import CASES
from tests.kernels.triton_cases import poisoned

CUDA = torch.device("cuda")
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(why_none(CUDA)), reason=why_none(CUDA))]


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str]:
    return errors_of("tests.kernels.step_cases")


@pytest.mark.timeout(300)  # all of them, in the first
@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str, interpreted: dict[str, str]) -> None:
    assert interpreted[name] == ""


@pytest.mark.parametrize("name", [pytest.param(name, marks=on_gpu) for name in CASES])
def test_on_the_gpu(name: str) -> None:
    with poisoned():
        CASES[name](open_gpu(CUDA), torch.bfloat16)
