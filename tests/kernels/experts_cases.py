"""What the experts' kernel must do, as cases for the interpreter (float32) and for a GPU (bfloat16)."""

import torch

from ridgeline.kernels.experts import deal, multiply
from ridgeline.kernels.experts.reference import multiply_reference
from ridgeline.kernels.gpu import Gpu
from tests.kernels.triton_cases import Case, close, random, tolerance


def product(
    tokens: int, top: int, experts: int, *, n: int = 70, inner: int = 40, by_token: bool = True,
    bias: bool = False, factor: bool = False, open_experts: int | None = None, idle: int = 0,
) -> Case:  # fmt: skip
    """Tokens with `top` different experts each, of the first open_experts. The first `idle` are idle."""

    def check(gpu: Gpu, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(tokens)
        chosen = torch.stack([
            torch.randperm(open_experts or experts, generator=generator)[:top] for _ in range(tokens)
        ]).to(gpu.device)  # fmt: skip
        x = random(gpu, dtype, tokens * (1 if by_token else top), inner + 8)[:, :inner]
        weight = random(gpu, dtype, experts, n, inner, scale=inner**-0.5)
        bias_EN = random(gpu, dtype, experts, n) if bias else None
        factor_P = random(gpu, torch.float32, tokens * top) if factor else None
        wanted = multiply_reference(
            x.float(), weight.float(), chosen, by_token=by_token,
            bias_EN=None if bias_EN is None else bias_EN.float(), factor_P=factor_P,
        )  # fmt: skip
        lens = torch.tensor([0] * idle + [7] * (tokens - idle), dtype=torch.int32, device=gpu.device)
        dealt = deal(chosen, experts, lens if idle else None)
        got = multiply(gpu, x, weight, dealt, by_token=by_token, bias_EN=bias_EN, factor_P=factor_P)
        close(got[idle * top:], wanted[idle * top:], tolerance(dtype))
        read = (dealt.edges[1:] > dealt.edges[:-1]).sum()
        assert read == len(chosen[idle:].unique()) and dealt.edges[-1] == (tokens - idle) * top

    return check


CASES: dict[str, Case] = {
    "one token": product(1, 2, 4),
    "experts without a token, biases": product(5, 2, 7, open_experts=3, bias=True),
    "several blocks of an expert": product(60, 2, 4, by_token=False, factor=True, bias=True),
    "idle tokens": product(9, 2, 7, factor=True, idle=6),
    "all of one expert": product(40, 1, 3, open_experts=1, n=32, inner=136),
}
