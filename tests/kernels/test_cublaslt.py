"""Products by cuBLASLt with a named algorithm: every one that it names computes what torch computes."""

import pytest
import torch

from ridgeline.kernels.cublaslt import CublasLt, open_cublaslt
from tests.kernels.devices import CUDA, ONLY_GPU

pytestmark = ONLY_GPU


def opened() -> CublasLt:
    found = open_cublaslt(CUDA)
    assert found is not None
    return found


def operands(rows: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    x_MK, weight_NK = (torch.randn(size, k, device=CUDA).bfloat16() for size in (rows, n))
    return x_MK, weight_NK * k ** -0.5, torch.randn(rows, n, device=CUDA).bfloat16()


@pytest.mark.parametrize(("rows", "n", "k"), [(192, 512, 256), (129, 384, 1024), (1000, 256, 512)])
def test_every_algorithm_multiplies(rows: int, n: int, k: int) -> None:
    """Plain, onto a residual elsewhere and in place, there twice to the same bits; scratch full of NaN;
    nothing beyond the rows."""
    lt, (x, weight, residual) = opened(), operands(rows, n, k)
    lt._workspace.fill_(255)  # NaN in every float type
    product = x.float() @ weight.float().T
    names = lt.algorithms(x, weight, residual, (64, 256, 2 * rows))
    assert len(names) > 2
    served = 0
    for name in names:
        room = torch.full((rows + 1, n), torch.nan, device=CUDA).bfloat16()
        out, inside = room[:rows], residual.clone()
        if not lt.multiply(x, weight, out, name):
            continue
        served += 1
        torch.testing.assert_close(out.float(), product, atol=3e-2, rtol=2e-2)
        assert room[rows].isnan().all()
        again = inside.clone()
        assert lt.multiply(x, weight, out, name, residual) and lt.multiply(x, weight, inside, name, inside)
        for sums in (out, inside):
            torch.testing.assert_close(sums.float(), residual.float() + product, atol=5e-2, rtol=2e-2)
        lt._workspace.fill_(255)
        assert lt.multiply(x, weight, again, name, again) and torch.equal(again, inside)
    assert served >= len(lt.algorithms(x, weight, residual, ()))


def test_what_does_not_fit_is_left_to_others() -> None:
    """Another version of the library, another type, an address between the library's steps: nothing done."""
    lt, (x, weight, residual) = opened(), operands(192, 256, 512)
    name = lt.algorithms(x, weight, residual, ())[0]
    before = residual.clone()
    version, data = name.split(":")
    assert lt.knows(name) and not lt.knows(f"{int(version) + 1}:{data}")
    assert not lt.multiply(x, weight, residual, f"{int(version) + 1}:{data}")
    assert not lt.multiply(x.float(), weight.float(), residual.float(), name)
    shifted = torch.empty(192 * 256 + 8, device=CUDA, dtype=torch.bfloat16)[8:].view(192, 256)
    assert not lt.multiply(x, weight, shifted, name)
    assert torch.equal(residual, before)


def test_a_graph_replays_it() -> None:
    lt, (x, weight, out) = opened(), operands(192, 512, 256)
    name = lt.algorithms(x, weight, out, ())[0]
    assert lt.multiply(x, weight, out, name)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        lt.multiply(x, weight, out, name)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out.float(), x.float() @ weight.float().T, atol=3e-2, rtol=2e-2)
