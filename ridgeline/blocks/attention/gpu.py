"""The attention block on a GPU: decodes through the split-KV kernel, prompt chunks through the paged kernel
or a library's.

Owns how a page lies there: [2 (key, value), G, tokens_per_page, D], which the decode kernel reads fastest.
What decodes run depends on nothing on the host, so that a CUDA graph can hold it. Knows no weight format.

Legend: T tokens, S decode rows, H hidden, M query heads, G KV heads, D head width, E = (M + 2 G) D, K keys.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.norm_rope.module import Rotation
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.step import CacheRegion, Step
from ridgeline.kernels.decode_attention import DecodeAttention, Plan, Rows, unfit_heads
from ridgeline.kernels.gpu import Gpu
from ridgeline.kernels.prefill_attention import Chunk, PrefillAttention
from ridgeline.kernels.prefill_attention import Plan as ChunkPlan
from ridgeline.kernels.rotate_write import rotate_write


def fits(spec: AttentionSpec) -> bool:
    """True when the kernels serve heads of this geometry, what becomes of their scores and of what is
    attended, and nobody else reads the pages."""
    plain = spec.softcap is None and not (spec.v_norm or spec.lends or spec.out_gate)
    return plain and not unfit_heads(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.rope.rotary_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShared:
    """Once a step for all layers of a share key: the decodes' plan, and what the chunks after them need."""

    decodes: Plan | None
    chunks: ChunkPlan | None
    cos_TR: Tensor
    sin_TR: Tensor
    slots_T: Tensor


class GpuAttention:
    """x + out(attend(rope(qk_norm(qkv(norm(x)))))). The first num_decodes tokens are rows of their own."""

    capturable = True

    def __init__(self, spec: AttentionSpec, parts: Parts, gpu: Gpu) -> None:
        self._spec = spec
        self._qkv = parts.norm_linear("norm", "qkv", spec.norm_eps)
        self._out = parts.linear_add("out", "post_norm" if spec.post_norm else None, spec.norm_eps)
        self._rotation = Rotation(spec.rope, gpu.device, kernel=True)
        self._attend = DecodeAttention(gpu, max_rows=gpu.max_rows, max_kv_heads=spec.num_kv_heads)
        self._attend_chunks = PrefillAttention(gpu)
        self._dtype = parts.tensor("norm.weight").dtype
        self._q_norm = parts.tensor("q_norm.weight") if spec.qk_norm else None
        self._k_norm = parts.tensor("k_norm.weight") if spec.qk_norm else None
        self._sinks_M = parts.tensor("sinks") if spec.sinks else None

    def bind(self, regions: Sequence[CacheRegion]) -> None:
        (region,) = regions
        self.group = region.group
        pages = region.bytes_NB.view(region.dtype)
        pages_N2GPD = pages.unflatten(1, (2, self._spec.num_kv_heads, region.tokens_per_page, -1))
        self._keys, self._values = pages_N2GPD.transpose(2, 3).unbind(1)

    @property
    def group_heads(self) -> int:
        return self._spec.num_heads // self._spec.num_kv_heads

    def share_key(self) -> Hashable:
        spec = self._spec
        return (
            "attention",
            self.group,
            spec.rope,
            spec.window_tokens,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.sinks,
        )

    def prepare(self, step: Step) -> GpuShared:
        spec, first = self._spec, step.num_decodes
        group, plan, chunks = step.groups[self.group], None, None
        cos_TR, sin_TR = self._rotation.tables(step.positions_T, step.reach_T)
        if first:
            rows = Rows(
                lens_S=step.lengths_S[:first],
                table_SX=group.table_SP[:first],
                cos_SR=cos_TR[:first],
                sin_SR=sin_TR[:first],
            )
            shared = step.shared if step.shared_group == self.group else None
            plan = self._attend.plan(
                rows,
                self._keys,
                self._values,
                num_heads=spec.num_heads,
                window=spec.window_tokens,
                shared=shared,
            )
        if first < step.num_tokens:
            chunks = self._attend_chunks.plan(
                _chunks(step) if step.chunks_C3 is None else step.chunks_C3,
                group.table_SP[first:],
                self._keys,
                self._values,
                num_heads=spec.num_heads,
                dtype=self._dtype,
                window=spec.window_tokens,
                sinks=spec.sinks,
                num_tokens=step.num_tokens - first,
            )
        return GpuShared(
            decodes=plan,
            chunks=chunks,
            cos_TR=cos_TR[first:],
            sin_TR=sin_TR[first:],
            slots_T=group.slots_T[first:],
        )

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        assert isinstance(shared, GpuShared)
        first, spec = step.num_decodes, self._spec
        together, out_TE = step.prefill_from, None
        qkv_TE = self._qkv(x_TH, together)
        if shared.decodes is not None and shared.chunks is not None:
            out_TE = qkv_TE.new_empty(len(qkv_TE), spec.num_heads * spec.head_dim)
        if shared.decodes is not None:
            decoded_SE = self._attend(
                qkv_TE[:first],
                self._keys,
                self._values,
                shared.decodes,
                scale=spec.scale,
                q_norm=self._q_norm,
                k_norm=self._k_norm,
                eps=spec.norm_eps,
                sinks_M=self._sinks_M,
                out_SE=None if out_TE is None else out_TE[:first],
            )
            if shared.chunks is None:
                return self._out(decoded_SE, x_TH, together)
        assert shared.chunks is not None
        chunks_TE = self._chunks(
            qkv_TE[first:], shared, shared.chunks, None if out_TE is None else out_TE[first:]
        )
        return self._out(chunks_TE if out_TE is None else out_TE, x_TH, together)

    def _chunks(
        self, qkv_TE: Tensor, shared: GpuShared, plan: ChunkPlan, out_TE: Tensor | None
    ) -> Tensor:
        spec = self._spec
        rotate_write(
            qkv_TE,
            self._keys,
            self._values,
            shared.slots_T,
            shared.cos_TR,
            shared.sin_TR,
            num_heads=spec.num_heads,
            q_norm=self._q_norm,
            k_norm=self._k_norm,
            eps=spec.norm_eps,
        )
        return self._attend_chunks(
            qkv_TE.unflatten(1, (-1, spec.head_dim)),
            self._keys,
            self._values,
            plan,
            scale=spec.scale,
            sinks_M=self._sinks_M,
            out_TE=out_TE,
        )


def _chunks(step: Step) -> list[Chunk]:
    """The rows after the decodes, by their place among the tokens after those."""
    rows = slice(step.num_decodes, None)
    starts, counts = step.starts[rows].tolist(), step.counts[rows]
    firsts = (counts.cumsum() - counts).tolist()
    return [
        Chunk(first=first, start=start, count=count)
        for first, start, count in zip(firsts, starts, counts.tolist(), strict=True)
    ]
