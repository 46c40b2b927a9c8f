"""Kimi Delta Attention (arXiv 2510.26692, section 3): the gated delta rule with a decay for every channel of
a key, norm and residual included. Described, not run yet."""

from dataclasses import dataclass

from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec, State
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaSpec:
    """x + out(sigmoid(gate(h)) * norm(delta(conv(qkv(h)), decay(h), beta(h)))) with h = norm(x). decay and
    gate go through head_dim channels; a head keeps one state [head_dim, head_dim] in float32.
    conv_width: tokens that the convolution over q, k and v sees, the current one counted."""

    hidden_size: int
    num_heads: int
    head_dim: int
    conv_width: int

    @property
    def kind(self) -> str:
        return "kimi_delta"

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def state_bytes(self) -> int:
        """Of a sequence: the states and the convolution's tail, float32."""
        return 4 * self.inner_size * (self.head_dim + 3 * (self.conv_width - 1))

    def params(self) -> tuple[ParamSpec, ...]:
        h, inner, narrow = self.hidden_size, self.inner_size, self.head_dim
        return (ParamSpec(name="norm.weight", shape=(h,), role="norm"),
                ParamSpec(name="qkv.weight", shape=(3 * inner, h), role="linear", shard=0),
                ParamSpec(name="narrow.weight", shape=(2 * narrow + self.num_heads, h), role="linear"),
                ParamSpec(name="decay.weight", shape=(inner, narrow), role="linear", shard=0),
                ParamSpec(name="gate.weight", shape=(inner, narrow), role="linear", shard=0),
                ParamSpec(name="conv.weight", shape=(3 * inner, 1, self.conv_width), role="scalar"),
                ParamSpec(name="dt_bias", shape=(inner,), role="scalar"),
                ParamSpec(name="a_log", shape=(self.num_heads,), role="scalar"),
                ParamSpec(name="gated_norm.weight", shape=(self.head_dim,), role="norm"),
                ParamSpec(name="out.weight", shape=(h, inner), role="linear", shard=1))

    def cost(self) -> tuple[CostLine, ...]:
        """The scan as a recurrence: seven operations an element of the state and token, and the state read
        and written once a step."""
        h, inner, narrow = self.hidden_size, self.inner_size, self.head_dim
        state = form(rows=float(self.state_bytes))
        return (CostLine(op="in", flops=form(tokens=2.0 * h * (3 * inner + 2 * narrow + self.num_heads)),
                         weights=("norm.weight", "qkv.weight", "narrow.weight")),
                CostLine(op="gates", flops=form(tokens=4.0 * inner * narrow),
                         weights=("decay.weight", "gate.weight")),
                CostLine(op="scan", flops=form(tokens=7.0 * inner * narrow + 6.0 * self.conv_width * inner),
                         read=state, written=state, weights=("conv.weight", "dt_bias", "a_log")),
                CostLine(op="out", flops=form(tokens=2.0 * inner * h),
                         weights=("gated_norm.weight", "out.weight")))

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return (State(num_bytes=self.state_bytes),)
