"""The mixture-of-experts block: tokens sorted by expert, so that a step reads each expert it uses once.

Owns the order norm, router, experts, weighted sum and residual. Knows no weight format: products come from
Parts. What a token gets depends on no other token: its experts' results are summed in the order of its own
choice.

Legend: T tokens, K chosen experts, P = T K (token, expert) pairs, E experts, H hidden.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ridgeline.blocks.mlp.reference import gated
from ridgeline.blocks.moe.reference import route
from ridgeline.blocks.moe.spec import MoeSpec
from ridgeline.blocks.norm_rope.reference import rms_norm
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.rowwise import rowwise
from ridgeline.blocks.step import CacheRegion, Step


class Moe:
    """x + experts(norm(x)) [+ shared(norm(x))]."""

    def __init__(self, spec: MoeSpec, parts: Parts) -> None:
        self._spec = spec
        self._norm_H = parts.tensor("norm.weight")
        self._router = parts.linear("router")
        self._choice_bias_E = parts.tensor("router.choice_bias") if spec.router.choice_bias else None
        self._gate_up, self._down = parts.experts("gate_up"), parts.experts("down")
        if spec.shared_size:
            self._shared_gate_up = parts.linear("shared_gate_up")
            self._shared_down = parts.linear("shared_down")
        self._shared_gate = parts.linear("shared_gate") if spec.shared_gate else None
        self._gated = rowwise(lambda inner: gated(inner, spec.activation), parts.apart)
        self._sigmoid = rowwise(torch.sigmoid, parts.apart)
        self._sum = rowwise(lambda x_TKH: x_TKH.sum(1), parts.apart)
        self._num_read = 0

    def bind(self, regions: Sequence[CacheRegion]) -> None:
        assert not regions, "a mixture of experts keeps nothing"

    def share_key(self) -> Hashable:
        return "moe"

    def prepare(self, step: Step) -> None:
        return None

    def take_experts_read(self) -> int:
        """See blocks.step.Routed."""
        found, self._num_read = self._num_read, 0
        return found

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        h_TH = rms_norm(x_TH, self._norm_H, self._spec.norm_eps)
        logits_TE = self._router(h_TH.float(), step.prefill_from)
        weights_TK, experts_TK = route(logits_TE, self._spec.router, self._choice_bias_E, self._sigmoid)
        out_TH = self._experts(h_TH, weights_TK, experts_TK, step)
        if self._spec.shared_size:
            out_TH += self._shared(h_TH, step.prefill_from)
        return out_TH.add_(x_TH)

    def _experts(self, h_TH: Tensor, weights_TK: Tensor, experts_TK: Tensor, step: Step) -> Tensor:
        """[T, H]. Sorting is stable, so that an expert's decodes stand before its prompt tokens."""
        spec, chosen_P, num_decodes = self._spec.router, experts_TK.flatten(), step.prefill_from
        order_P = chosen_P.argsort(stable=True)
        sorted_PH = h_TH[order_P // spec.top_k]
        by_token_PH = torch.empty_like(sorted_PH)
        counts_2E = torch.stack((chosen_P.bincount(minlength=spec.num_experts),
                                 chosen_P[: num_decodes * spec.top_k].bincount(minlength=spec.num_experts)))
        begin = 0
        for expert, (count, decodes) in enumerate(counts_2E.T.tolist()):
            if count:
                rows = slice(begin, begin + count)
                inner = self._gated(self._gate_up[expert](sorted_PH[rows], decodes))
                by_token_PH[order_P[rows]] = self._down[expert](inner, decodes)
                self._num_read += 1
                begin += count
        by_token_TKH = by_token_PH.view(*experts_TK.shape, -1)
        return self._sum(by_token_TKH.mul_(weights_TK[..., None].to(h_TH.dtype)))

    def _shared(self, h_TH: Tensor, num_decodes: int) -> Tensor:
        inner = self._gated(self._shared_gate_up(h_TH, num_decodes))
        out_TH = self._shared_down(inner, num_decodes)
        if self._shared_gate is not None:
            out_TH *= self._sigmoid(self._shared_gate(h_TH.float(), num_decodes)).to(out_TH.dtype)
        return out_TH
