"""Softmax attention with ordinary K and V (MHA, GQA, MQA, sliding window), its norm and residual included."""

from dataclasses import dataclass

from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec, Paged, Shared, Window
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """x + o(attend(rope(qk_norm(qkv(norm(x)))))), or x + post_norm(o(...)).

    head_dim is independent of hidden_size / num_heads. window_tokens counts the query itself (None: full
    attention). scale: the factor on q.k (head_dim**-0.5 unless the family says otherwise). softcap: scores s
    become softcap * tanh(s / softcap), before the mask (Gemma 2). sinks: a learnt score a head stands in the
    softmax beside the keys' and takes its share to nothing (GPT-OSS). out_gate: what is attended is
    multiplied by the sigmoid of a gate, whose rows stand behind each head's q in qkv. v_norm: values are
    normed, without weights (Gemma 4). reads_layer: it has no keys and values of its own and reads those that
    an earlier layer's attention keeps, as rotated there (Brandon et al. 2024, arXiv 2405.12981). lends: later
    layers read what this one keeps.

    Described and not run: pre_norm False, without a norm before it (OLMo 2); tied_values, values are the keys
    before their norm and rotation, so that v has no rows (Gemma 4; both are kept); beside, further small
    tensors of the family.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeSpec
    scale: float
    window_tokens: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    post_norm: bool = False
    softcap: float | None = None
    sinks: bool = False
    v_norm: bool = False
    reads_layer: int | None = None
    lends: bool = False
    out_gate: bool = False
    pre_norm: bool = True
    tied_values: bool = False
    beside: tuple[ParamSpec, ...] = ()

    @property
    def described(self) -> bool:
        """True when no module runs it."""
        return bool(self.beside) or self.tied_values or not self.pre_norm

    @property
    def kind(self) -> str:
        return "attention"

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """Rows of q (with the gate's), k and v."""
        values = 0 if self.tied_values else self.kv_size
        return (2 if self.out_gate else 1) * self.q_size, self.kv_size, values

    @property
    def projection(self) -> tuple[str, int]:
        """Name and rows of what is made of x: queries, and keys and values where they are its own."""
        return ("qkv", sum(self.qkv_rows)) if self.reads_layer is None else ("q", self.qkv_rows[0])

    def params(self) -> tuple[ParamSpec, ...]:
        name, rows = self.projection
        found = [ParamSpec(name="norm.weight", shape=(self.hidden_size,), role="norm")][:self.pre_norm]
        found += [*self.beside,
                  ParamSpec(name=f"{name}.weight", shape=(rows, self.hidden_size), role="linear", shard=0)]
        if self.qkv_bias:
            found.append(ParamSpec(name=f"{name}.bias", shape=(rows,), role="bias", shard=0))
        if self.qk_norm:
            found += [ParamSpec(name=f"{normed}_norm.weight", shape=(self.head_dim,), role="norm")
                      for normed in ("q", "k") if normed in name]
        if self.sinks:
            found.append(ParamSpec(name="sinks", shape=(self.num_heads,), role="scalar", shard=0))
        found.append(ParamSpec(name="out.weight", shape=(self.hidden_size, self.q_size), role="linear",
                               shard=1))
        if self.out_bias:
            found.append(ParamSpec(name="out.bias", shape=(self.hidden_size,), role="bias"))
        if self.post_norm:
            found.append(ParamSpec(name="post_norm.weight", shape=(self.hidden_size,), role="norm"))
        return tuple(found)

    def cost(self) -> tuple[CostLine, ...]:
        (name, rows), w = self.projection, self.window_tokens
        later = ("sinks", "out.weight", "out.bias", "post_norm.weight")
        before = tuple(param.name for param in self.params() if param.name not in later)
        written = 2.0 * self.kv_size if self.reads_layer is None else 0.0
        return (
            CostLine(op=name, flops=form(tokens=2.0 * rows * self.hidden_size), weights=before,
                     cache_written=form(tokens=written)),
            CostLine(op="attention", flops=form(pairs=4.0 * self.q_size, window=w),
                     weights=("sinks",) if self.sinks else (),
                     cache_read=form(context=2.0 * self.kv_size, window=w)),
            CostLine(op="out", flops=form(tokens=2.0 * self.q_size * self.hidden_size),
                     weights=("out.weight",) + (("out.bias",) if self.out_bias else ())
                     + (("post_norm.weight",) if self.post_norm else ())),
        )

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        if self.reads_layer is not None:
            return (Shared(layer=self.reads_layer),)
        entry = 2 * self.kv_size * bytes_per_element
        if self.window_tokens is not None:
            return (Window(bytes_per_token=entry, window_tokens=self.window_tokens),)
        return (Paged(bytes_per_entry=entry),)
