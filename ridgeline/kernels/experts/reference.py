"""Experts' products in plain torch, pair by pair: the kernel's twin. Legend: as of the door."""

import torch
from torch import Tensor


def multiply_reference(x: Tensor, weight_ENI: Tensor, experts_TK: Tensor, *, by_token: bool,
                       bias_EN: Tensor | None = None, factor_P: Tensor | None = None) -> Tensor:
    """[P, N]; arguments as of `multiply`."""
    chosen_P = experts_TK.flatten()
    rows = x.repeat_interleave(experts_TK.shape[1], 0) if by_token else x
    out_PN = torch.einsum("pi,pni->pn", rows, weight_ENI[chosen_P])
    if bias_EN is not None:
        out_PN = out_PN + bias_EN[chosen_P]
    return out_PN if factor_P is None else out_PN * factor_P[:, None]
