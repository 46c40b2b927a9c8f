"""Softmax attention with ordinary K and V (MHA, GQA, MQA, sliding window), its norm and residual included."""

from dataclasses import dataclass

from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec, Paged, Window
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """x + o(attend(rope(qk_norm(qkv(norm(x)))))), or x + post_norm(o(...)).

    head_dim is independent of hidden_size / num_heads. window_tokens counts the query itself (None: full
    attention). scale: the factor on q.k (head_dim**-0.5 unless the family says otherwise). softcap: scores s
    become softcap * tanh(s / softcap), before the mask (Gemma 2). sinks: a learnt score a head stands in the
    softmax beside the keys' and takes its share to nothing (GPT-OSS). out_gate: what is attended is
    multiplied by the sigmoid of a gate, whose rows stand behind each head's q in qkv.
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
    out_gate: bool = False

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
        return (2 if self.out_gate else 1) * self.q_size, self.kv_size, self.kv_size

    def params(self) -> tuple[ParamSpec, ...]:
        rows = sum(self.qkv_rows)
        found = [ParamSpec(name="norm.weight", shape=(self.hidden_size,), role="norm"),
                 ParamSpec(name="qkv.weight", shape=(rows, self.hidden_size), role="linear", shard=0)]
        if self.qkv_bias:
            found.append(ParamSpec(name="qkv.bias", shape=(rows,), role="bias", shard=0))
        if self.qk_norm:
            found += [ParamSpec(name="q_norm.weight", shape=(self.head_dim,), role="norm"),
                      ParamSpec(name="k_norm.weight", shape=(self.head_dim,), role="norm")]
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
        rows = sum(self.qkv_rows)
        w = self.window_tokens
        return (
            CostLine(op="qkv", flops=form(tokens=2.0 * rows * self.hidden_size),
                     weights=("norm.weight", "qkv.weight")
                     + (("qkv.bias",) if self.qkv_bias else ())
                     + (("q_norm.weight", "k_norm.weight") if self.qk_norm else ()),
                     cache_written=form(tokens=2.0 * self.kv_size)),
            CostLine(op="attention", flops=form(pairs=4.0 * self.q_size, window=w),
                     weights=("sinks",) if self.sinks else (),
                     cache_read=form(context=2.0 * self.kv_size, window=w)),
            CostLine(op="out", flops=form(tokens=2.0 * self.q_size * self.hidden_size),
                     weights=("out.weight",) + (("out.bias",) if self.out_bias else ())
                     + (("post_norm.weight",) if self.post_norm else ())),
        )

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        entry = 2 * self.kv_size * bytes_per_element
        if self.window_tokens is not None:
            return (Window(bytes_per_token=entry, window_tokens=self.window_tokens),)
        return (Paged(bytes_per_entry=entry),)
