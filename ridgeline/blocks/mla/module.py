"""The latent attention block over flat tokens. Owns the order norm, down, norms of the latents, rotation,
cache write, attention, output and residual; a layer that reads another's latents has queries only and writes
nothing. Knows no weight format.

On a CPU each decode attends by itself: a product of a library takes another way at each number of rows, and
the loop costs less there than the padding. A GPU's decodes go together.

Legend: T tokens, H hidden, M heads, C latent width, R rotary width, E = C + R, D query width of a head, U
rows of a head's keys and values.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ridgeline.blocks.mla.reference import latent_attention
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.norm_rope.module import Rotation
from ridgeline.blocks.norm_rope.reference import rms_norm, rotate
from ridgeline.blocks.paged import RotatedPlan, plan_attention
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.step import CacheRegion, Step


class Mla:
    """x + out(attend(...)); decodes absorb the up-projection, prompt chunks expand it."""

    def __init__(self, spec: MlaSpec, parts: Parts) -> None:
        self._spec = spec
        self._down = parts.norm_linear("norm", spec.down, spec.norm_eps)
        self._q = None if spec.q_rank is None else parts.norm_linear("q_norm", "q", spec.latent_eps)
        self._latent_norm_C = parts.tensor("latent_norm.weight") if spec.reads_layer is None else None
        self._line_M = (parts.tensor("q_scale"), parts.tensor("q_bias")) if spec.scaled_queries else None
        self._up_MUC = parts.tensor("up.weight").unflatten(0, (spec.num_heads, -1))
        self._out = parts.linear_add("out")
        self._turns = parts.tensor("turns") if spec.learnt_turns else None
        self._rotation = Rotation(spec.rope, self._up_MUC.device, turns=self._turns)

    def bind(self, regions: Sequence[CacheRegion]) -> None:
        (region,) = regions
        self._group = region.group
        self._entries = region.entries(self._spec.entry_dim)
        turns = () if self._turns is None else tuple(self._turns.tolist())
        self._share_key = ("mla", self._group, self._spec.rope, turns, self._spec.entry_dim,
                           self._latent_norm_C is None)

    def share_key(self) -> Hashable:
        return self._share_key

    def prepare(self, step: Step) -> RotatedPlan:
        cos_TR, sin_TR = self._rotation.tables(step.positions_T, step.reach_T)
        plan = plan_attention(step, step.groups[self._group], self._entries, None,
                              written=self._latent_norm_C is None, apart=self._entries.device.type == "cpu")
        return RotatedPlan(cos_TR=cos_TR, sin_TR=sin_TR, plan=plan)

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        assert isinstance(shared, RotatedPlan)
        spec, first = self._spec, step.num_decodes
        q_TX, new_TE = self._down(x_TH, first).split(spec.down_rows, 1)
        q_TX = q_TX if self._q is None else self._q(q_TX.contiguous(), first)
        q_TMD = q_TX.unflatten(1, (spec.num_heads, -1))
        rotary_TMR = rotate(q_TMD[..., spec.nope_dim:], shared.cos_TR, shared.sin_TR)
        q_TMD = torch.cat((q_TMD[..., :spec.nope_dim], rotary_TMR), -1)
        if self._line_M is not None:
            scale_M, bias_M = self._line_M
            line_TM = (step.positions_T + 1).log()[:, None] * scale_M + bias_M
            q_TMD = (q_TMD * line_TM[..., None]).to(q_TMD.dtype)
        kept_TE = None if self._latent_norm_C is None else self._kept(new_TE, self._latent_norm_C, shared)
        out_TMV = latent_attention(q_TMD, kept_TE, self._entries, shared.plan, self._up_MUC, scale=spec.scale)
        return self._out(out_TMV.flatten(1), x_TH, first)

    def _kept(self, new_TE: Tensor, norm_C: Tensor, shared: RotatedPlan) -> Tensor:
        """[T, E]: the tokens' own entries, as they are kept."""
        latent_TC, key_TR = new_TE.split((self._spec.latent_dim, self._spec.rope.rotary_dim), 1)
        key_T1R = rotate(key_TR[:, None], shared.cos_TR, shared.sin_TR)
        kept_TE = torch.cat((rms_norm(latent_TC, norm_C, self._spec.latent_eps), key_T1R[:, 0]), 1)
        return kept_TE.to(self._entries.dtype)
