"""Products of tokens with the experts that they chose: each expert that is used is read once for a block of
its tokens, in one launch for all experts.

The door. Knows no router. Nothing is read back, so that a graph can hold it.

Legend: T tokens, K chosen experts, P = T K pairs, token by token, E experts, N outputs and I inputs of each.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.kernels.gpu import Gpu

_MOST_ROWS = 128
_PAIRS = 1024  # looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """Which pairs each expert has. order_P int32: the pairs, those of an expert beside one another in order.
    edges [E + 1] int32: where an expert's begin. rows: pairs of an expert that are multiplied together, in so
    many `blocks` at most. top: experts of a token."""

    order_P: Tensor
    edges: Tensor
    rows: int
    blocks: int
    top: int


def deal(experts_TK: Tensor, num_experts: int, lens_T: Tensor | None = None) -> Dealt:
    """One launch. experts_TK: int64, of each token. lens_T int32: 0 for idle tokens, whose pairs nobody
    multiplies; None where there are none."""
    from ridgeline.kernels.experts.triton import deal_kernel

    num, device = experts_TK.numel(), experts_TK.device
    rows = min(_MOST_ROWS, max(16, 1 << (num // num_experts).bit_length()))
    order_P, edges = (torch.empty(size, dtype=torch.int32, device=device) for size in (num, num_experts + 1))
    chosen_TK, top = experts_TK.contiguous(), experts_TK.shape[1]
    deal_kernel[(num_experts + 1,)](chosen_TK, chosen_TK if lens_T is None else lens_T, order_P, edges, num,
                                    _PAIRS, top, lens_T is not None)
    return Dealt(order_P=order_P, edges=edges, rows=rows, top=top,
                 blocks=min(num, num // rows + num_experts))


def multiply(gpu: Gpu, x: Tensor, weight_ENI: Tensor, dealt: Dealt, *, by_token: bool,
             bias_EN: Tensor | None = None, factor_P: Tensor | None = None) -> Tensor:
    """[P, N] in x's dtype: each pair's row of x by its expert's weight, unwritten for idle tokens. x: [T, I]
    when by_token, else [P, I], rows of stride 1. factor_P: float32, multiplies the pairs' results."""
    from ridgeline.kernels.experts.triton import experts_kernel

    num_experts, n, inner = weight_ENI.shape
    assert x.stride(1) == 1 and weight_ENI.is_contiguous() and x.shape[1] == inner
    num = len(dealt.order_P)
    out_PN = torch.empty(num, n, dtype=x.dtype, device=x.device)
    block_n, block_k = (64, 128) if dealt.rows <= 32 else (128, 64)
    experts_kernel[(-(-n // block_n), dealt.blocks)](
        x, weight_ENI, weight_ENI if bias_EN is None else bias_EN, x if factor_P is None else factor_P,
        out_PN, dealt.order_P, dealt.edges, n, x.stride(0), inner, num_experts,
        1 << (num_experts - 1).bit_length(), dealt.top if by_token else 1, dealt.rows, block_n, block_k,
        bias_EN is not None, factor_P is not None, gpu.interpret, num_warps=8 if dealt.rows > 64 else 4,
        num_stages=4 if dealt.rows <= 32 else 3)
    return out_PN
