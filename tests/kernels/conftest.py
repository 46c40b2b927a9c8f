"""What tests of the CPU kernels share: the library, memory that is NaN until it is written."""

import platform
import shutil
from collections.abc import Iterator

import pytest
import torch

from ridgeline.kernels.cpu.build import FLAGS, built
from ridgeline.kernels.cpu.native import Native, load
from tests.quant.blocks import kernels


@pytest.fixture
def library() -> Native:
    return kernels()


@pytest.fixture(scope="session")
def cc() -> str:
    """The compiler. Without one, all of these tests are skipped; with one, the kernels must be there."""
    found = shutil.which("cc")
    if found is None:
        pytest.skip("there is no compiler")
    return found


@pytest.fixture(scope="session")
def scalar(cc: str, tmp_path_factory: pytest.TempPathFactory) -> Native:
    """The same sources without vector instructions."""
    if platform.machine() != "x86_64":
        pytest.skip("there is one instruction set here")
    found = load(built([cc], tmp_path_factory.mktemp("scalar"), (*FLAGS, "-mno-avx2", "-O1")))
    assert found.isa == "scalar"
    return found


@pytest.fixture
def poisoned() -> Iterator[None]:
    """torch.empty gives NaN (bytes of 255), so that what reads before it writes shows."""
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("error")  # unlike its twin, without the import of a compiler
    assert torch.empty(3).isnan().all()
    yield
    torch.set_deterministic_debug_mode("default")
