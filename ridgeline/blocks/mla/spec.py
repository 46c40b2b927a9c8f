"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), its norm and residual
included."""

from dataclasses import dataclass

from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec, Paged, Shared
from ridgeline.spec.cost import CostLine, form

HELD = 1 << 23  # numbers of a chunk's keys and values that are expanded at once


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """x + out(attend(q, latents)). A token keeps one latent of all heads' keys and values and one rotary key.

    q_rank: width of the queries' own latent, None when they come from x at once. A head's query and key are
    nope_dim elements without position and rope.rotary_dim with; its value has value_dim. scale: the factor on
    q.k. latent_eps: of the norms of both latents.

    "down" holds the rows of the queries (or their latent), then latent_dim, then the rotary key. "up" holds,
    head by head, the rows that make a latent a key and those that make it a value; decodes multiply it from
    the other side (section 2.1.2), hence a plain tensor.

    rope.rotary_dim is 0 where neither queries nor keys have a position. reads_layer: it has no latents of its
    own and attends to those that an earlier layer keeps, through an "up" of its own; the rows of its queries
    (or their latent) are then "q_down". scaled_queries: a head's query is multiplied by
    q_scale * ln(position + 1) + q_bias. learnt_turns: pair i turns exp(turns[i]) times as fast as rope has
    it, which must be the same in a layer and in those that read it.
    """

    hidden_size: int
    num_heads: int
    q_rank: int | None
    latent_dim: int
    nope_dim: int
    value_dim: int
    norm_eps: float
    latent_eps: float
    rope: RopeSpec
    scale: float
    reads_layer: int | None = None
    scaled_queries: bool = False
    learnt_turns: bool = False

    @property
    def kind(self) -> str:
        return "mla"

    @property
    def entry_dim(self) -> int:
        """Elements that a token keeps."""
        return self.latent_dim + self.rope.rotary_dim

    @property
    def q_size(self) -> int:
        return self.num_heads * (self.nope_dim + self.rope.rotary_dim)

    @property
    def down_rows(self) -> tuple[int, int]:
        return self.q_rank or self.q_size, self.entry_dim if self.reads_layer is None else 0

    @property
    def down(self) -> str:
        """Name of what is made of x."""
        return "down" if self.reads_layer is None else "q_down"

    @property
    def up_size(self) -> int:
        return self.num_heads * (self.nope_dim + self.value_dim)

    def expanded(self, num_keys: int) -> int:
        """Numbers that a chunk's latents take: gathered, and as keys and values of the heads that go
        together."""
        one_head = num_keys * (2 * self.nope_dim + self.rope.rotary_dim + self.value_dim)
        return num_keys * self.entry_dim + max(one_head, 2 * HELD)

    def params(self) -> tuple[ParamSpec, ...]:
        found = [ParamSpec(name="norm.weight", shape=(self.hidden_size,), role="norm"),
                 ParamSpec(name=f"{self.down}.weight", shape=(sum(self.down_rows), self.hidden_size),
                           role="linear")]
        if self.reads_layer is None:
            found.append(ParamSpec(name="latent_norm.weight", shape=(self.latent_dim,), role="norm"))
        if self.q_rank is not None:
            found += [ParamSpec(name="q_norm.weight", shape=(self.q_rank,), role="norm"),
                      ParamSpec(name="q.weight", shape=(self.q_size, self.q_rank), role="linear", shard=0)]
        if self.scaled_queries:
            found += [ParamSpec(name=name, shape=(self.num_heads,), role="scalar", shard=0)
                      for name in ("q_scale", "q_bias")]
        if self.learnt_turns:
            found.append(ParamSpec(name="turns", shape=(self.rope.rotary_dim // 2,), role="scalar"))
        return (*found,
                ParamSpec(name="up.weight", shape=(self.up_size, self.latent_dim), role="plain", shard=0),
                ParamSpec(name="out.weight", shape=(self.hidden_size, self.num_heads * self.value_dim),
                          role="linear", shard=1))

    def cost(self) -> tuple[CostLine, ...]:
        h, m, c, r = self.hidden_size, self.num_heads, self.latent_dim, self.rope.rotary_dim
        up = 2.0 * self.up_size * c  # of one latent into keys and values, or of one decode the other way
        # rows of few tokens are priced absorbed, all others expanded
        absorbed, expanded = 2.0 * m * (2 * c + r), 2.0 * m * (self.nope_dim + r + self.value_dim)
        queries = () if self.q_rank is None else (
            CostLine(op="q", flops=form(tokens=2.0 * self.q_size * self.q_rank),
                     weights=("q_norm.weight", "q.weight")),)
        later = ("q_norm.weight", "q.weight", "up.weight", "out.weight")
        return (
            CostLine(op="down", flops=form(tokens=2.0 * sum(self.down_rows) * h),
                     weights=tuple(param.name for param in MlaSpec.params(self) if param.name not in later),
                     cache_written=form(tokens=self.down_rows[1])),
            *queries,
            CostLine(op="attention", weights=("up.weight",), cache_read=form(context=self.entry_dim),
                     flops=form(context=up, pairs=expanded, few=up, few_pairs=absorbed - expanded,
                                few_keys=-up)),
            CostLine(op="out", flops=form(tokens=2.0 * m * self.value_dim * h), weights=("out.weight",)),
        )

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        if self.reads_layer is not None:
            return (Shared(layer=self.reads_layer),)
        return (Paged(bytes_per_entry=self.entry_dim * bytes_per_element),)
