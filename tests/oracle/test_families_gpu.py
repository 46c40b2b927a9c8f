"""Each family on a GPU in bfloat16, as far from float32 on a CPU as plain torch in bfloat16 is, and no
further."""

from collections.abc import Callable

import pytest
import torch

from ridgeline.kernels.gpu import open_gpu, why_none
from tests.features import cases_running
from tests.oracle.cases import CASES
from tests.oracle.oracles import Oracle, text
from tests.oracle.ours import Ours
from tests.oracle.test_families import pieces

CUDA = torch.device("cuda")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_none(CUDA)), reason=why_none(CUDA))]
SLACK = 1.5  # the sums run in another order; both errors are maxima over a few thousand logits


def errors(one: Oracle, ids: list[int], sizes: list[int] | None) -> tuple[float, float]:
    """(the GPU's, plain torch's in bfloat16): the largest difference of a logit from float32."""
    exact = one.ours.logits(ids, sizes)
    found = (Ours(one.folder, torch.bfloat16, open_gpu(CUDA)), Ours(one.folder, torch.bfloat16))
    gpu, cpu = (float((ours.logits(ids, sizes) - exact).abs().max()) for ours in found)
    return gpu, cpu


@pytest.mark.parametrize("case", cases_running(CASES, "GPU"))
def test_logits_are_as_near_as_bfloat16_can_be(oracle: Callable[[str], Oracle], case: str) -> None:
    """Whole, and in chunks that end in single tokens: prompts and decodes take different kernels."""
    for sizes in (None, pieces(77, seed=7)):
        ours, plain = errors(oracle(case), text(77), sizes)
        assert ours < SLACK * plain, (ours, plain)
