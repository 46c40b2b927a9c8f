"""Protects the seam for quantized weights: what fused parts may take in, and which tokens may take which
path."""

import pytest
import torch
from torch import Tensor

from ridgeline.base.errors import CheckpointError
from ridgeline.blocks.norm_rope.reference import rms_norm
from ridgeline.nn.linear import BlockParts, gated

TOKENS, WIDTH, FEATURES = 5, 12, 14


class Scaled:
    """A toy packed matrix: int8 with one scale. It notes where each product's prefill began."""

    def __init__(self, weight_NK: Tensor) -> None:
        self.scale = weight_NK.abs().max() / 127
        self.packed = (weight_NK / self.scale).round().to(torch.int8)
        self.seen: list[int] = []

    def tensors(self) -> dict[str, Tensor]:
        return {"packed": self.packed, "scale": self.scale}

    def dense(self) -> Tensor:
        return self.packed * self.scale

    def apply(self, x_TK: Tensor, prefill_from: int) -> Tensor:
        self.seen.append(prefill_from)
        return x_TK @ self.dense().T


class Fusing(Scaled):
    """The same with every fused product, and a count of them."""

    num_fused = 0

    def apply_norm(self, x_TK: Tensor, norm_K: Tensor, eps: float, prefill_from: int) -> Tensor:
        self.num_fused += 1
        return self.apply(rms_norm(x_TK, norm_K, eps), prefill_from)

    def gates(self, activation: str) -> bool:
        return activation == "silu"

    def apply_gated(self, x_TK: Tensor, norm_K: Tensor, eps: float, activation: str,
                    prefill_from: int) -> Tensor:
        return gated(self.apply_norm(x_TK, norm_K, eps, prefill_from), activation)

    def apply_add(self, x_TK: Tensor, residual_TN: Tensor, prefill_from: int) -> Tensor:
        self.num_fused += 1
        return residual_TN + self.apply(x_TK, prefill_from)


@pytest.fixture(params=["dense", "packed", "fusing"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _parts(kind: str, *, bias: bool) -> tuple[BlockParts, object, Tensor, dict[str, Tensor]]:
    """Parts over one matrix "w" of a kind; the matrix as a float tensor too."""
    torch.manual_seed(0)
    matrix, norm, shift = torch.randn(FEATURES, WIDTH), torch.randn(WIDTH), torch.randn(FEATURES)
    method = {"dense": lambda w: w, "packed": Scaled, "fusing": Fusing}[kind](matrix)
    weights = {"b.w.weight": method, "b.n.weight": norm} | ({"b.w.bias": shift} if bias else {})
    exact = method if isinstance(method, Tensor) else method.dense()
    small = {"norm": norm, "bias": shift if bias else torch.zeros(FEATURES)}
    return BlockParts(weights, "b."), method, exact, small


@pytest.mark.parametrize("bias", [False, True])
def test_every_part_equals_its_formula(kind: str, bias: bool) -> None:
    """Dense, packed and fused weights, with and without a bias, in all four parts; inputs stay as they
    were."""
    parts, _, w, small = _parts(kind, bias=bias)
    x, residual = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, FEATURES)
    kept = x.clone(), residual.clone()
    plain = x @ w.T + small["bias"]
    normed = rms_norm(x, small["norm"], 1e-5) @ w.T + small["bias"]
    gate, up = normed.chunk(2, -1)
    same = torch.testing.assert_close
    same(parts.linear("w")(x, 2), plain)
    same(parts.norm_linear("n", "w", 1e-5)(x, 2), normed)
    same(parts.gated_linear("n", "w", 1e-5, "silu")(x, 2), torch.nn.functional.silu(gate) * up)
    same(parts.linear_add("w")(x, residual, 2), plain + residual)
    assert torch.equal(x, kept[0]) and torch.equal(residual, kept[1])


def test_prefill_border_reaches_the_weight() -> None:
    """A quantized weight chooses its path by this number alone."""
    parts, method, _, _ = _parts("packed", bias=True)
    assert isinstance(method, Scaled)
    x = torch.randn(TOKENS, WIDTH)
    parts.linear("w")(x, 1)
    parts.norm_linear("n", "w", 1e-5)(x, 2)
    parts.gated_linear("n", "w", 1e-5, "silu")(x, 3)
    parts.linear_add("w")(x, torch.zeros(TOKENS, FEATURES), 4)
    assert method.seen == [1, 2, 3, 4]


def test_fused_products_are_used() -> None:
    """A weight that can fuse is asked to: norm, gate and residual go in."""
    parts, method, _, _ = _parts("fusing", bias=False)
    assert isinstance(method, Fusing)
    x = torch.randn(TOKENS, WIDTH)
    parts.norm_linear("n", "w", 1e-5)(x, 0)
    parts.gated_linear("n", "w", 1e-5, "silu")(x, 0)
    parts.linear_add("w")(x, torch.zeros(TOKENS, FEATURES), 0)
    assert method.num_fused == 3


def test_faults_name_the_weight() -> None:
    """A missing weight and a packed norm say which it is."""
    parts = BlockParts({"b.w.weight": Scaled(torch.ones(2, 2))}, "b.")
    with pytest.raises(CheckpointError, match=r"b\.out\.weight is missing"):
        parts.linear("out")
    with pytest.raises(CheckpointError, match=r"b\.w\.weight must be a plain tensor"):
        parts.tensor("w.weight")
