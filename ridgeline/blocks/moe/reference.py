"""Routing in plain torch, and the slow twin of the experts: every one of them on every token.

Legend: T tokens, E experts, K chosen, G groups, H hidden.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.blocks.moe.spec import RouterSpec
from ridgeline.blocks.parts import Linear
from ridgeline.blocks.rowwise import Rowwise


def route(logits_TE: Tensor, spec: RouterSpec, choice_bias_E: Tensor | None = None,
          sigmoid: Rowwise = torch.sigmoid) -> tuple[Tensor, Tensor]:
    """(weights [T, K] float32, experts [T, K] int64), best first. logits_TE: float32, bias included."""
    if spec.score == "chosen":
        best_TK, experts_TK = logits_TE.topk(spec.top_k, -1)
        return best_TK.softmax(-1) * spec.scale, experts_TK
    scores_TE = logits_TE.softmax(-1) if spec.score == "softmax" else sigmoid(logits_TE)
    choice_TE = scores_TE if choice_bias_E is None else scores_TE + choice_bias_E
    if spec.num_groups > 1:
        groups_TGE = choice_TE.unflatten(1, (spec.num_groups, -1))
        best_TG = groups_TGE.topk(spec.group_best, -1).values.sum(-1)
        closed_TG = torch.ones_like(best_TG, dtype=torch.bool)
        closed_TG.scatter_(1, best_TG.topk(spec.top_groups, -1).indices, False)
        choice_TE = groups_TGE.masked_fill(closed_TG[..., None], -torch.inf).flatten(1)
    experts_TK = choice_TE.topk(spec.top_k, -1).indices
    weights_TK = scores_TE.gather(1, experts_TK)
    if spec.renormalize:
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + 1e-20)
    return weights_TK * spec.scale, experts_TK


def every_expert(x_TH: Tensor, experts: Sequence[Linear], weights_TK: Tensor, experts_TK: Tensor) -> Tensor:
    """[T, H]: the sum of all experts' results, those not chosen with weight 0."""
    dense_TE = weights_TK.new_zeros(len(x_TH), len(experts)).scatter_(1, experts_TK, weights_TK)
    results = [expert(x_TH, 0) * dense_TE[:, i, None] for i, expert in enumerate(experts)]
    return torch.stack(results).sum(0)
