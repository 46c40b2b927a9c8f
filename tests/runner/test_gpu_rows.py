"""Protects what a GPU's runner does beside plain texts: vectors of prompts, grammars, drafts, counts of
experts, --deterministic. Here by Triton's interpreter; on a GPU the same, and more."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.kernels.gpu import open_gpu
from tests.kernels.devices import CUDA, interpreted, on_gpu
from tests.kernels.triton_cases import poisoned
from tests.runner import apart_cases
from tests.runner.gpu_cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str) -> None:
    assert interpreted("tests.runner.gpu_cases", name) == ""


@pytest.mark.parametrize("name", on_gpu(CASES))
def test_on_the_gpu(name: str) -> None:
    """By graphs, and where a step cannot be one, kernel by kernel."""
    with poisoned():
        CASES[name](open_gpu(CUDA, max_rows=4), torch.float32)


@pytest.mark.parametrize("name", apart_cases.CASES)
def test_deterministic_interpreted(name: str) -> None:
    assert interpreted("tests.runner.apart_cases", name) == ""


@pytest.mark.parametrize("name", on_gpu(apart_cases.CASES | apart_cases.LARGE))
def test_deterministic_on_the_gpu(name: str) -> None:
    """Kernel by kernel, a token of a decode as a chunk of one."""
    with poisoned():
        (apart_cases.CASES | apart_cases.LARGE)[name](open_gpu(CUDA, max_rows=8), torch.bfloat16)
