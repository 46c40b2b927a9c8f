"""Latent attention over the keys that a small index picks (DeepSeek-V3.2, arXiv 2512.02556, section 2.1;
GLM-5). Described, not run yet."""

from dataclasses import dataclass

from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec, Paged
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseSpec(MlaSpec):
    """Latent attention of whose tokens a query sees the top_k that the index scores highest.

    The index has heads of its own: I(t, s) = sum over heads of w * relu(q . k_s). Its queries come from the
    queries' latent, its one key a token (with a LayerNorm) is kept beside the latent. The attention
    multiplies the up-projection from the other side in prompts too, since each query reads other keys.
    """

    index_heads: int
    index_dim: int
    top_k: int

    @property
    def kind(self) -> str:
        return "sparse"

    def _index(self) -> tuple[ParamSpec, ...]:
        h, heads, width = self.hidden_size, self.index_heads, self.index_dim
        assert self.q_rank is not None, "an index reads the queries' latent"
        return (ParamSpec(name="index_q.weight", shape=(heads * width, self.q_rank), role="linear"),
                ParamSpec(name="index_k.weight", shape=(width, h), role="linear"),
                ParamSpec(name="index_norm.weight", shape=(width,), role="norm"),
                ParamSpec(name="index_norm.bias", shape=(width,), role="norm"),
                ParamSpec(name="index_weights.weight", shape=(heads, h), role="plain"))

    def params(self) -> tuple[ParamSpec, ...]:
        return (*MlaSpec.params(self), *self._index())

    def cost(self) -> tuple[CostLine, ...]:
        """A chunk reads its index keys once; of the latents it reads those that its last query may pick at
        least and the chunk's own, which is less than the union of all picks: a floor."""
        heads, width, matrices = self.index_heads, self.index_dim, self._index()
        *lines, out = (line for line in MlaSpec.cost(self) if line.op != "attention")
        index = CostLine(
            op="index", weights=tuple(param.name for param in matrices),
            flops=form(tokens=2.0 * sum(p.num_elements for p in matrices if len(p.shape) == 2),
                       pairs=2.0 * heads * width + 2.0 * heads),
            cache_written=form(tokens=width), cache_read=form(context=width))
        attention = CostLine(
            op="attention", weights=("up.weight",),
            cache_read=form(context=self.entry_dim, window=self.top_k),
            flops=(*form(tokens=2.0 * self.up_size * self.latent_dim),
                   *form(pairs=2.0 * self.num_heads * (2 * self.latent_dim + self.rope.rotary_dim),
                         window=self.top_k)))
        return (*lines, index, attention, out)

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return (*MlaSpec.cache(self, bytes_per_element),
                Paged(bytes_per_entry=self.index_dim * bytes_per_element))
