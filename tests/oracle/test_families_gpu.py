"""Each family on a GPU in bfloat16, as far from float32 on a CPU as plain torch in bfloat16 is, and no
further."""

from pathlib import Path

import pytest
import torch

from ridgeline.kernels.gpu import open_gpu, why_none
from tests.oracle.ours import Ours
from tests.oracle.reference import reference_model
from tests.oracle.test_families import CASES, pieces, text

CUDA = torch.device("cuda")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_none(CUDA)), reason=why_none(CUDA))]
SLACK = 1.5  # the sums run in another order; both errors are maxima over a few thousand logits


def errors(path: Path, ids: list[int], sizes: list[int] | None) -> tuple[float, float]:
    """(the GPU's, plain torch's in bfloat16): the largest difference of a logit from float32."""
    exact = Ours(path).logits(ids, sizes)
    found = (Ours(path, torch.bfloat16, open_gpu(CUDA)), Ours(path, torch.bfloat16))
    return tuple(float((one.logits(ids, sizes) - exact).abs().max()) for one in found)  # type: ignore[return-value]


@pytest.mark.parametrize("case", CASES)
def test_logits_are_as_near_as_bfloat16_can_be(tmp_path: Path, case: str) -> None:
    """Whole, and in chunks that end in single tokens: prompts and decodes take different kernels."""
    name, fields = CASES[case]
    reference_model(name, **fields).save_pretrained(tmp_path)
    for sizes in (None, pieces(77, seed=7)):
        ours, plain = errors(tmp_path, text(77), sizes)
        assert ours < SLACK * plain, (ours, plain)
