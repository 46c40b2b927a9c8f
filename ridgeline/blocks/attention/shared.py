"""Attention to keys and values that an earlier layer keeps: queries of its own, and nothing written.

Runs in plain torch; the lending layer's pages are laid out as reference.py has it.

Legend: T tokens, H hidden, M query heads, D head width, R rotary width.
"""

from collections.abc import Hashable, Sequence

from torch import Tensor

from ridgeline.blocks.attention.reference import Scoring, paged_attention
from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.norm_rope.module import Rotation
from ridgeline.blocks.norm_rope.reference import rms_norm, rotate
from ridgeline.blocks.paged import RotatedPlan, plan_attention
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.step import CacheRegion, Step


class SharedAttention:
    """x + out(attend(rope(q_norm(q(norm(x)))), the other layer's keys and values))."""

    def __init__(self, spec: AttentionSpec, parts: Parts) -> None:
        self._spec = spec
        self._apart = parts.apart
        self._q = parts.norm_linear("norm", "q", spec.norm_eps)
        self._q_norm_D = parts.tensor("q_norm.weight") if spec.qk_norm else None
        self._out = parts.linear_add("out", "post_norm" if spec.post_norm else None, spec.norm_eps)
        sinks_M = parts.tensor("sinks") if spec.sinks else None
        self._scoring = Scoring(scale=spec.scale, softcap=spec.softcap, sinks_M=sinks_M)
        self._rotation = Rotation(spec.rope, parts.tensor("norm.weight").device)

    def bind(self, regions: Sequence[CacheRegion]) -> None:
        (region,) = regions
        self._group = region.group
        self._entries = region.entries(2, self._spec.num_kv_heads, self._spec.head_dim)

    def share_key(self) -> Hashable:
        spec = self._spec
        return "shared", self._group, spec.rope, spec.window_tokens, spec.num_kv_heads, spec.head_dim

    def prepare(self, step: Step) -> RotatedPlan:
        cos_TR, sin_TR = self._rotation.tables(step.positions_T, step.reach_T)
        plan = plan_attention(step, step.groups[self._group], self._entries, self._spec.window_tokens,
                              written=True, apart=self._apart)
        return RotatedPlan(cos_TR=cos_TR, sin_TR=sin_TR, plan=plan)

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        assert isinstance(shared, RotatedPlan)
        spec = self._spec
        q_TMD = self._q(x_TH, step.num_decodes).unflatten(1, (spec.num_heads, -1))
        if self._q_norm_D is not None:
            q_TMD = rms_norm(q_TMD, self._q_norm_D, spec.norm_eps)
        q_TMD = rotate(q_TMD, shared.cos_TR, shared.sin_TR)
        out_TMD = paged_attention(q_TMD, None, self._entries, shared.plan, scoring=self._scoring,
                                  window=spec.window_tokens)
        return self._out(out_TMD.flatten(1), x_TH, step.num_decodes)
