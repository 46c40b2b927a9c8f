"""Each family on a GPU in bfloat16, as far from float32 on a CPU as plain torch in bfloat16 is, and no
further."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ridgeline.kernels.gpu import open_gpu
from tests.features import cases_running
from tests.kernels.devices import CUDA, ONLY_GPU
from tests.oracle.cases import CASES
from tests.oracle.oracles import Oracle, text
from tests.oracle.ours import Ours
from tests.oracle.reference import has_reference
from tests.oracle.test_families import pieces

pytestmark = ONLY_GPU
SLACK = 1.5  # the sums run in another order; both errors come of a few thousand logits


def errors(one: Oracle, ids: list[int], sizes: list[int] | None) -> tuple[Tensor, Tensor]:
    """(the GPU's, plain torch's in bfloat16): of each token, the largest difference of a logit from
    float32."""
    exact = one.ours.logits(ids, sizes)
    found = (Ours(one.folder, torch.bfloat16, open_gpu(CUDA)), Ours(one.folder, torch.bfloat16))
    gpu, cpu = ((ours.logits(ids, sizes) - exact).abs().amax(-1) for ours in found)
    return gpu, cpu


def compared(one: Oracle) -> tuple[float, ...]:
    """The quantiles of tokens that are held: the worst; with experts the middle and most of them, since in
    bfloat16 a token near the border of two experts takes either (plain torch too), and is then far off."""
    kinds = {block.kind for layer in one.ours.spec.layers for _, block in layer.blocks}
    return (0.5, 0.8) if "moe" in kinds else (1.0,)


@pytest.mark.parametrize("case", cases_running(CASES, "GPU"))
def test_logits_are_as_near_as_bfloat16_can_be(oracle: Callable[[str], Oracle], case: str) -> None:
    """Whole, and in chunks that end in single tokens: prompts and decodes take different kernels. `make test`
    has every family's reference; a GPU's machine may have an older transformers."""
    if not has_reference(CASES[case][0]):
        pytest.skip(f"this transformers has no {CASES[case][0]}")
    for sizes in (None, pieces(77, seed=7)):
        ours, plain = errors(oracle(case), text(77), sizes)
        for share in compared(oracle(case)):
            assert ours.quantile(share) < SLACK * plain.quantile(share), (share, ours, plain)
