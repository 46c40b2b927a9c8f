"""The attention block over flat tokens: linears see all tokens of a step at once, attention goes row by row.

Owns the order norm, qkv, qk-norm, rope, cache write, attention, output and residual. Knows no weight format
(Parts) and no kernel's inside (paged_attention is a door: arrays in, an array out).

Legend: T tokens, H hidden, M query heads, G KV heads, D head width, E = (M + 2 G) D.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgeline.blocks.attention.reference import Scoring, paged_attention
from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.norm_rope.module import Rotation
from ridgeline.blocks.norm_rope.reference import rms_norm, rotate
from ridgeline.blocks.paged import AttentionPlan, plan_attention
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.rowwise import rowwise
from ridgeline.blocks.step import CacheRegion, Step
from ridgeline.kernels.cpu.attention import TokenRows, fits, fused_attention, runs_of
from ridgeline.kernels.cpu.native import Native, native, why_none
from ridgeline.kernels.cpu.tape import run_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShared:
    """Once a step for all layers of a share key: rows for the fused kernel, or else a plan."""

    cos_TD: Tensor
    sin_TD: Tensor
    plan: AttentionPlan | None
    rows: TokenRows | None

    def with_room(self, max_rows: int) -> "AttentionShared | None":
        """See blocks.step.Kept."""
        if self.rows is None:
            return None
        return replace(self, rows=self.rows.with_room(max_rows))

    def receive(self, other: object) -> None:
        """See blocks.step.Kept."""
        assert isinstance(other, AttentionShared) and self.rows is not None and other.rows is not None
        self.rows.receive(other.rows)


class Attention:
    """x + out(attend(rope(qk_norm(qkv(norm(x))))))."""

    def __init__(self, spec: AttentionSpec, parts: Parts) -> None:
        self._spec = spec
        self._qkv = parts.norm_linear("norm", "qkv", spec.norm_eps)
        self._out = parts.linear_add("out", "post_norm" if spec.post_norm else None, spec.norm_eps)
        norm_D = parts.tensor("norm.weight")
        self._dtype = norm_D.dtype
        self._apart = parts.apart
        self._sigmoid = rowwise(torch.sigmoid, parts.apart)
        self._rotation = Rotation(spec.rope, norm_D.device)
        sinks_M = parts.tensor("sinks") if spec.sinks else None
        self._scoring = Scoring(scale=spec.scale, softcap=spec.softcap, sinks_M=sinks_M)
        self._native: Native | None = None
        self.way = ("", "")
        self._norms: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
        self._qk_norm_ND: Tensor | None = None
        if spec.qk_norm:
            q_D, k_D = parts.tensor("q_norm.weight"), parts.tensor("k_norm.weight")
            self._norms = (q_D, k_D)
            self._qk_norm_ND = torch.cat(
                (q_D.expand(spec.num_heads, -1), k_D.expand(spec.num_kv_heads, -1))
            )

    def bind(self, regions: Sequence[CacheRegion]) -> None:
        (self._region,) = regions
        self._entries = self._region.entries(2, self._spec.num_kv_heads, self._spec.head_dim)
        plain = self._spec.softcap is None and not self._spec.v_norm
        fit = plain and fits(self._entries, self._dtype)
        self._native = native() if fit else None
        if self._native is not None:
            self.way = ("C kernel", self._native.isa)
        elif self._region.bytes_NB.device.type != "cpu":
            self.way = ("torch", "the C kernel is for CPUs")
        elif not plain:
            self.way = ("torch", "the C kernel has no softcap and no norm of values")
        elif not fit:
            self.way = ("torch", "the C kernel takes float32 activations, blocks and heads of multiples of 8")
        else:
            self.way = ("torch", why_none())

    def share_key(self) -> Hashable:
        spec = self._spec
        return (
            "attention",
            self._region.group,
            spec.rope,
            spec.window_tokens,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
        )

    def prepare(self, step: Step) -> AttentionShared:
        cos, sin = self._rotation.tables(step.positions_T, step.reach_T)
        group = step.groups[self._region.group]
        if self._native is None:
            plan = plan_attention(step, group, self._entries, self._spec.window_tokens, apart=self._apart)
            return AttentionShared(cos_TD=cos, sin_TD=sin, plan=plan, rows=None)
        rows = TokenRows(
            position_T=step.positions_T.int(),
            table_SP=group.table_SP,
            cosine_TR=cos,
            sine_TR=sin,
            longest=int((step.starts + step.counts).max()) - 1,
            runs=runs_of(step.counts, run_tokens(self._spec.num_heads, self._spec.num_kv_heads), step.runs),
        )
        return AttentionShared(cos_TD=cos, sin_TD=sin, plan=None, rows=rows)

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        assert isinstance(shared, AttentionShared)
        spec = self._spec
        qkv_TND = self._qkv(x_TH, step.num_decodes).unflatten(1, (-1, spec.head_dim))
        gate_TMD = None
        if spec.out_gate:
            q_TMD, gate_TMD = qkv_TND[:, : 2 * spec.num_heads].unflatten(1, (-1, 2)).unbind(2)
            qkv_TND = torch.cat((q_TMD, qkv_TND[:, 2 * spec.num_heads :]), 1)
        if self._native is not None and shared.rows is not None:
            q_norm, k_norm = self._norms
            out_TMD = fused_attention(
                self._native,
                qkv_TND,
                self._entries,
                shared.rows,
                scale=spec.scale,
                window=spec.window_tokens,
                q_norm=q_norm,
                k_norm=k_norm,
                eps=spec.norm_eps,
                sinks=self._scoring.sinks_M,
            )
        else:
            assert shared.plan is not None
            out_TMD = self._attend(qkv_TND, shared.cos_TD, shared.sin_TD, shared.plan)
        if gate_TMD is not None:
            out_TMD = out_TMD * self._sigmoid(gate_TMD)
        return self._out(out_TMD.flatten(1), x_TH, step.num_decodes)

    def _attend(self, qkv_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor, plan: AttentionPlan) -> Tensor:
        """Where no fused kernel serves: norm, rotation, write and attention one after another."""
        spec = self._spec
        dtype = qkv_TND.dtype
        qk_TND = qkv_TND[:, : spec.num_heads + spec.num_kv_heads]
        turned = qk_TND
        if self._qk_norm_ND is not None:
            turned = rms_norm(qk_TND, None, spec.norm_eps) * self._qk_norm_ND
        qk_TND.copy_(rotate(turned, cos_TD, sin_TD))
        if spec.v_norm:
            v_TGD = qkv_TND[:, -spec.num_kv_heads :]
            v_TGD.copy_(rms_norm(v_TGD, None, spec.norm_eps))
        q_TMD = qkv_TND[:, : spec.num_heads]
        kv_T2GD = qkv_TND[:, spec.num_heads :].to(self._entries.dtype).unflatten(1, (2, spec.num_kv_heads))
        return paged_attention(
            q_TMD, kv_T2GD, self._entries, plan, scoring=self._scoring, window=spec.window_tokens
        ).to(dtype)
