"""Protects the packed products: right within the rounding of the activations, and a row the same to the bit
whatever stands beside it, on any number of threads and under any instruction set."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from ridgeline.kernels.cpu.native import Native
from ridgeline.quant.packed import PackedMatrix, Packing32
from tests.quant.blocks import Source, random_part, values

pytestmark = pytest.mark.usefixtures("poisoned")
EPS = 1e-5
KINDS = ("q4_0", "q4_1", "q8_0")
SHAPES = ((1, 32), (15, 64), (16, 96), (17, 32), (40, 160), (63, 320), (100, 576))  # outputs, inputs
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 70)
HUGE = 10_000  # a prefill_from past all rows


def matrix(library: Native, kind: str, n: int, k: int, *, planes: int = 2) -> tuple[PackedMatrix, Tensor]:
    """A packed matrix and its values, float64 [n, k]."""
    part = random_part(kind, n, k, seed=n + k)
    packed = Packing32(library, planes=planes).pack(Source((part,)), torch.device("cpu"))
    assert isinstance(packed, PackedMatrix)
    return packed, values(part).double()


def inputs(rows: int, k: int, seed: int = 0) -> Tensor:
    """Activations whose size varies much from group to group, as in a model; some groups are zero."""
    random = torch.Generator().manual_seed(seed)
    sizes = torch.randn(rows, k // 32, 1, generator=random).mul(2).exp()
    sizes[torch.rand(sizes.shape, generator=random) < 0.05] = 0
    return (torch.randn(rows, k // 32, 32, generator=random) * sizes).view(rows, k)


def bound(weight: Tensor, x: Tensor, planes: int) -> Tensor:
    """The most that a product may be off: half a code of each activation's group, and float32 sums."""
    largest = x.view(len(x), -1, 32).abs().amax(-1).repeat_interleave(32, 1)
    code = 8128 if planes == 2 else 127
    return (largest * 0.501 / code + x.abs() * 3e-6) @ weight.abs().T + 1e-30


def gated(products: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
    """silu of the first half times the second, and the most that errors of the products make it be off."""
    (gate, up), (gate_off, up_off) = products.chunk(2, -1), off.chunk(2, -1)
    exact = silu(gate) * up
    most = 1.1 * gate_off * (up.abs() + up_off) + (silu(gate).abs() + 1.1 * gate_off) * up_off
    return exact, most + 2e-6 * exact.abs() + 1e-30


def norm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_products(library: Native, kind: str, shape: tuple[int, int], planes: int) -> None:
    """Plain, with norm, and added to a residual that stays as it is. Eight-bit weights take 14 bits."""
    n, k = shape
    packed, weight = matrix(library, kind, n, k, planes=planes)
    bits = 2 if kind == "q8_0" else planes
    gain, x, residual = 1 + 0.1 * torch.randn(k), inputs(11, k), torch.randn(11, n)
    kept = residual.clone()
    for out, given, added in ((packed.apply(x, HUGE), x.double(), 0),
                              (packed.apply_norm(x, gain, EPS, HUGE), norm(x, gain), 0),
                              (packed.apply_add(x, residual, HUGE), x.double(), residual.double())):
        allowed = bound(weight, given, bits) + 1e-6 * torch.as_tensor(added).abs()
        assert ((out.double() - given @ weight.T - added).abs() <= allowed).all()
    assert torch.equal(residual, kept)


@pytest.mark.parametrize(("kind", "planes"), [("q4_0", 1), ("q4_1", 2), ("q8_0", 2)])
@pytest.mark.parametrize("n", [32, 96, 160])
def test_gated(library: Native, kind: str, planes: int, n: int) -> None:
    """silu of the first half times the second, for small, large and very large numbers."""
    packed, weight = matrix(library, kind, n, 96, planes=planes)
    assert packed.gates("silu")
    gain, x = 1 + 0.1 * torch.randn(96), inputs(9, 96)
    for size in (0.01, 1.0, 300.0):
        out = packed.apply_gated(x, gain * size, EPS, "silu", HUGE).double()
        given = norm(x, gain * size)
        exact, off = gated(given @ weight.T, bound(weight, given, planes))
        assert ((out - exact).abs() <= off).all()


def test_gates_only_what_it_can(library: Native) -> None:
    """Halves that are not whole tiles, and other activations, are left to the unfused twin."""
    even, odd = (matrix(library, "q4_1", n, 32)[0] for n in (64, 48))
    assert even.gates("silu") and not even.gates("gelu") and not even.gates("gelu_tanh")
    assert not odd.gates("silu")
    with pytest.raises(AssertionError):
        odd.apply_gated(torch.ones(1, 32), torch.ones(32), EPS, "silu", HUGE)


def products(packed: PackedMatrix, x: Tensor, residual: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
    return (packed.apply(x, HUGE), packed.apply_norm(x, gain, EPS, HUGE), packed.apply_add(x, residual, HUGE),
            packed.apply_gated(x, gain, EPS, "silu", HUGE))


@pytest.mark.parametrize(("kind", "planes"), [("q4_1", 1), ("q4_1", 2), ("q4_0", 2), ("q8_0", 2)])
def test_a_row_does_not_depend_on_rows_or_threads(library: Native, kind: str, planes: int) -> None:
    """To the bit: alone = batched is what makes a text the same in company."""
    packed, _ = matrix(library, kind, 96, 96, planes=planes)
    x, residual, gain = inputs(max(ROWS), 96), torch.randn(max(ROWS), 96), torch.randn(96)
    alone = [torch.cat(parts) for parts in zip(*(
        products(packed, x[i: i + 1], residual[i: i + 1], gain) for i in range(max(ROWS))))]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for rows in ROWS if threads == 1 else (1, 5, 70):
            together = products(packed, x[:rows], residual[:rows], gain)
            assert all(torch.equal(a[:rows], b) for a, b in zip(alone, together)), (rows, threads)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_outputs_are_the_first_of_even_ones(library: Native, kind: str) -> None:
    """The last tile's padding reaches neither its own row nor the next, on two threads."""
    torch.set_num_threads(2)
    part = random_part(kind, 64, 64)
    x, residual = inputs(5, 64), torch.randn(5, 64)
    packing = Packing32(library, planes=2)
    whole, *cut = (packing.pack(Source((replace(part, raw_RB=part.raw_RB[:n]),)), torch.device("cpu"))
                   for n in (64, 1, 31, 33, 50, 63))
    for packed in cut:
        assert torch.equal(packed.apply(x, HUGE), whole.apply(x, HUGE)[:, : packed.n])
        added = packed.apply_add(x, residual[:, : packed.n], HUGE)
        assert torch.equal(added, whole.apply_add(x, residual, HUGE)[:, : packed.n])


@pytest.mark.parametrize("kind", ["q4_1", "q8_0"])
def test_inputs_need_not_be_contiguous(library: Native, kind: str) -> None:
    """Rows apart, rows that are one row, columns apart; a residual likewise."""
    packed, _ = matrix(library, kind, 48, 64)
    wide, tall = torch.randn(6, 200), torch.randn(64, 6)
    residual_wide, residual_tall = torch.randn(6, 100), torch.randn(48, 6)
    for x in (wide[:, 3:67], wide[1:2, 3:67].expand(6, -1), tall.T, wide[::2, 9:73].repeat(2, 1)):
        assert torch.equal(packed.apply(x, HUGE), packed.apply(x.contiguous(), HUGE))
        for residual in (residual_wide[:, 5:53], residual_tall.T, residual_wide[:1, :48].expand(6, -1)):
            out = packed.apply_add(x, residual, HUGE)
            assert torch.equal(out, packed.apply_add(x.contiguous(), residual.contiguous(), HUGE))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("kind", "planes"), [("q4_1", 1), ("q4_1", 2), ("q8_0", 2)])
def test_a_broken_row_breaks_alone(library: Native, kind: str, planes: int, bad: float) -> None:
    """A row that holds NaN or Inf gives NaN everywhere, so that it is found; its neighbours never notice."""
    packed, _ = matrix(library, kind, 64, 96, planes=planes)
    x, residual, gain = inputs(9, 96), torch.randn(9, 64), torch.randn(96)
    clean = products(packed, x, residual, gain)
    x[4, 50] = bad
    for before, after in zip(clean, products(packed, x, residual, gain)):
        assert after[4].isnan().all()
        after[4] = before[4]
        assert torch.equal(before, after)


@pytest.mark.parametrize("kind", ["q4_1", "q8_0"])
def test_numbers_near_the_ends_of_float32(library: Native, kind: str) -> None:
    """The smallest and the largest rows give small and large numbers, not NaN and not noise."""
    packed, weight = matrix(library, kind, 33, 64)
    sizes = (0.0, 1e-45, 1e-42, 1e-39, 1e-36, 1e-33, 1e-30, 1e-20, 1e20, 1e33)
    x = inputs(1, 64, seed=3) / inputs(1, 64, seed=3).abs().max() * torch.tensor(sizes)[:, None]
    out = packed.apply(x, HUGE).double()
    assert ((out - x.double() @ weight.T).abs() <= bound(weight, x.double(), 2) + 1e-28).all()
    assert (out[0] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_prompt_are_multiplied_as_those_of_decodes(library: Native, kind: str) -> None:
    """To the bit, so that a text is the same cached, in chunks and with what is forced known at once."""
    packed, _ = matrix(library, kind, 64, 96)
    x, residual, gain = inputs(29, 96), torch.randn(29, 64), torch.randn(96)
    for run in (lambda at: packed.apply(x, at), lambda at: packed.apply_norm(x, gain, EPS, at),
                lambda at: packed.apply_add(x, residual, at),
                lambda at: packed.apply_gated(x, gain, EPS, "silu", at)):
        assert torch.equal(run(0), run(HUGE)) and torch.equal(run(5), run(HUGE))
    assert packed.apply(x[:0], 0).shape == (0, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_unpacked_rows(library: Native, kind: str) -> None:
    """An embedding's rows are the file's own numbers, to the bit; in any order, repeated, none."""
    packed, weight = matrix(library, kind, 37, 64)
    ids = torch.tensor([0, 36, 16, 15, 36, 1])
    assert torch.equal(packed.rows(ids).double(), weight[ids])
    assert torch.equal(packed.rows(torch.arange(37).flip(0)[::2]).double(), weight.flip(0)[::2])
    assert packed.rows(ids[:0]).shape == (0, 64)
    for bad in (-1, 37, 48, 1 << 40):
        with pytest.raises(IndexError):
            packed.rows(torch.tensor([3, bad]))


def test_instruction_sets_agree(library: Native, scalar: Native) -> None:
    """The code without vectors gives the same bits, so a text does not depend on the machine's."""
    x, residual, gain = inputs(19, 96), torch.randn(19, 64), torch.randn(96)
    for kind in KINDS:
        for planes in (1, 2):
            one, other = (matrix(found, kind, 64, 96, planes=planes)[0] for found in (library, scalar))
            assert torch.equal(one.tiles, other.tiles)
            for a, b in zip(products(one, x, residual, gain), products(other, x, residual, gain)):
                assert torch.equal(a, b), (kind, planes)
            assert torch.equal(one.rows(torch.arange(64)), other.rows(torch.arange(64)))
