"""Linear attention with a fixed decay a head (Lightning Attention, arXiv 2501.08313, section 2.2), norm and
residual included. Described, not run yet."""

from dataclasses import dataclass

from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec, State
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttentionSpec:
    """x + out(sigmoid(gate(h)) * norm(scan(silu(qkv(h))))) with h = norm(x). A head keeps one state
    [head_dim, head_dim] in float32, S <- decay * S + k v."""

    hidden_size: int
    num_heads: int
    head_dim: int

    @property
    def kind(self) -> str:
        return "linear_attention"

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def state_bytes(self) -> int:
        """Of a sequence, float32."""
        return 4 * self.inner_size * self.head_dim

    def params(self) -> tuple[ParamSpec, ...]:
        h, inner = self.hidden_size, self.inner_size
        return (ParamSpec(name="norm.weight", shape=(h,), role="norm"),
                ParamSpec(name="qkv.weight", shape=(3 * inner, h), role="linear", shard=0),
                ParamSpec(name="gate.weight", shape=(inner, h), role="linear", shard=0),
                ParamSpec(name="inner_norm.weight", shape=(inner,), role="norm"),
                ParamSpec(name="out.weight", shape=(h, inner), role="linear", shard=1))

    def cost(self) -> tuple[CostLine, ...]:
        """The scan as a recurrence: five operations an element of the state and token, and the state read and
        written once a step."""
        h, inner, state = self.hidden_size, self.inner_size, form(rows=float(self.state_bytes))
        return (CostLine(op="qkv", flops=form(tokens=8.0 * inner * h),
                         weights=("norm.weight", "qkv.weight", "gate.weight")),
                CostLine(op="scan", flops=form(tokens=5.0 * inner * self.head_dim), read=state,
                         written=state),
                CostLine(op="out", flops=form(tokens=2.0 * inner * h),
                         weights=("inner_norm.weight", "out.weight")))

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return (State(num_bytes=self.state_bytes),)
