"""The attention block over flat tokens: linears see all tokens of a step at once, attention goes row by row.

Owns the order norm, qkv, qk-norm, rope, cache write, attention, output and residual. Knows no weight format
(Parts) and no kernel's inside (paged_attention is a door: arrays in, an array out).

Legend: T tokens, H hidden, M query heads, G KV heads, D head width, E = (M + 2 G) D.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.blocks.attention.reference import AttentionPlan, paged_attention, plan_attention
from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.norm_rope.module import Rotation
from ridgeline.blocks.norm_rope.reference import rms_norm, rotate
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.step import CacheRegion, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShared:
    """Once a step for all layers of a share key."""

    cos_TD: Tensor
    sin_TD: Tensor
    plan: AttentionPlan


class Attention:
    """x + out(attend(rope(qk_norm(qkv(norm(x))))))."""

    def __init__(self, spec: AttentionSpec, parts: Parts) -> None:
        self._spec = spec
        self._qkv = parts.norm_linear("norm", "qkv", spec.norm_eps)
        self._out = parts.linear_add("out")
        norm_D = parts.tensor("norm.weight")
        self._rotation = Rotation(spec.rope, norm_D.device)
        self._qk_norm_ND: Tensor | None = None
        if spec.qk_norm:
            q_D, k_D = parts.tensor("q_norm.weight"), parts.tensor("k_norm.weight")
            self._qk_norm_ND = torch.cat((q_D.expand(spec.num_heads, -1), k_D.expand(spec.num_kv_heads, -1)))

    def bind(self, regions: Sequence[CacheRegion]) -> None:
        (self._region,) = regions
        self._entries = self._region.entries(2, self._spec.num_kv_heads, self._spec.head_dim)

    def share_key(self) -> Hashable:
        spec = self._spec
        return ("attention", self._region.group, spec.rope, spec.window_tokens, spec.num_kv_heads,
                spec.head_dim)

    def prepare(self, step: Step) -> AttentionShared:
        cos, sin = self._rotation.tables(step.positions_T, step.reach_T)
        plan = plan_attention(step, step.groups[self._region.group], self._entries, self._spec.window_tokens)
        return AttentionShared(cos_TD=cos, sin_TD=sin, plan=plan)

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        assert isinstance(shared, AttentionShared)
        spec = self._spec
        qkv_TND = self._qkv(x_TH, step.num_decodes).unflatten(1, (-1, spec.head_dim))
        qk_TND = qkv_TND[:, : spec.num_heads + spec.num_kv_heads]
        turned = qk_TND
        if self._qk_norm_ND is not None:
            turned = rms_norm(qk_TND, None, spec.norm_eps) * self._qk_norm_ND
        qk_TND.copy_(rotate(turned, shared.cos_TD, shared.sin_TD))
        qkv_TND = qkv_TND.to(self._entries.dtype)
        kv_T2GD = qkv_TND[:, spec.num_heads:].unflatten(1, (2, spec.num_kv_heads))
        out_TMD = paged_attention(qkv_TND[:, : spec.num_heads], kv_T2GD, self._entries, shared.plan,
                                  scale=spec.scale, window=spec.window_tokens)
        return self._out(out_TMD.flatten(1).to(x_TH.dtype), x_TH, step.num_decodes)
