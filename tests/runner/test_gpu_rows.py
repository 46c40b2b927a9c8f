"""Protects what a GPU's runner does beside plain texts: vectors of prompts, grammars, drafts, counts of
experts. Here by Triton's interpreter; on a GPU the same."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.kernels.gpu import open_gpu, why_none
from tests.kernels.interpreted import errors_of
from tests.kernels.triton_cases import poisoned
from tests.runner.gpu_cases import CASES

CUDA = torch.device("cuda")
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(why_none(CUDA)), reason=why_none(CUDA))]


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str]:
    return errors_of("tests.runner.gpu_cases")


@pytest.mark.timeout(300)  # all of them, in the first
@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str, interpreted: dict[str, str]) -> None:
    assert interpreted[name] == ""


@pytest.mark.parametrize("name", [pytest.param(name, marks=on_gpu) for name in CASES])
def test_on_the_gpu(name: str) -> None:
    """By graphs, and where a step cannot be one, kernel by kernel."""
    with poisoned():
        CASES[name](open_gpu(CUDA, max_rows=4), torch.float32)
