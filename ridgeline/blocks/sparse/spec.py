"""Latent attention over the keys that a small index picks (DeepSeek-V3.2, arXiv 2512.02556, section 2.1;
GLM-5). Described, not run yet."""

from dataclasses import dataclass

from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec, Paged
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseSpec:
    """The latent attention of `latent`, of whose tokens a query sees the top_k that its index scores highest.

    The index has heads of its own: I(t, s) = sum over heads of w * relu(q . k_s). Its queries come from the
    queries' latent, its one key a token (with a LayerNorm) is kept beside the latent. The attention
    multiplies the up-projection from the other side in prompts too, since each query reads other keys.
    """

    latent: MlaSpec
    index_heads: int
    index_dim: int
    top_k: int

    @property
    def kind(self) -> str:
        return "sparse"

    @property
    def rope(self) -> RopeSpec:
        return self.latent.rope

    def params(self) -> tuple[ParamSpec, ...]:
        h, heads, width = self.latent.hidden_size, self.index_heads, self.index_dim
        assert self.latent.q_rank is not None, "an index reads the queries' latent"
        return (*self.latent.params(),
                ParamSpec(name="index_q.weight", shape=(heads * width, self.latent.q_rank), role="linear"),
                ParamSpec(name="index_k.weight", shape=(width, h), role="linear"),
                ParamSpec(name="index_norm.weight", shape=(width,), role="norm"),
                ParamSpec(name="index_norm.bias", shape=(width,), role="norm"),
                ParamSpec(name="index_weights.weight", shape=(heads, h), role="plain"))

    def cost(self) -> tuple[CostLine, ...]:
        """A chunk reads its index keys once; of the latents it reads those that its last query may pick at
        least and the chunk's own, which is less than the union of all picks: a floor."""
        of, heads, width = self.latent, self.index_heads, self.index_dim
        matrices = self.params()[len(of.params()):]
        lines = [line for line in of.cost() if line.op != "attention"]
        index = CostLine(
            op="index", weights=tuple(param.name for param in matrices),
            flops=form(tokens=2.0 * sum(p.num_elements for p in matrices if len(p.shape) == 2),
                       pairs=2.0 * heads * width + 2.0 * heads),
            cache_written=form(tokens=width), cache_read=form(context=width))
        attention = CostLine(
            op="attention", weights=("up.weight",), cache_read=form(context=of.entry_dim, window=self.top_k),
            flops=(*form(tokens=2.0 * of.up_size * of.latent_dim),
                   *form(pairs=2.0 * of.num_heads * (2 * of.latent_dim + of.rope.rotary_dim),
                         window=self.top_k)))
        return (*lines[:-1], index, attention, lines[-1])

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return (*self.latent.cache(bytes_per_element),
                Paged(bytes_per_entry=self.index_dim * bytes_per_element))
