"""Gated delta-rule attention (Yang et al. 2024, as in Qwen3-Next and Qwen3.5), norm and residual included."""

from dataclasses import dataclass

from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec, State
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaSpec:
    """x + out(silu(z) * norm(delta(conv(in(norm(x)))))).

    Key heads are shared by num_value_heads / num_key_heads value heads each. conv_width: tokens that the
    convolution sees, the current one counted. in holds the rows of q, k, v, z, b (write strength) and a
    (decay), in this order; the convolution runs over q, k and v.
    """

    hidden_size: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    norm_eps: float

    @property
    def kind(self) -> str:
        return "gated_delta"

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_size + self.value_size

    @property
    def state_bytes(self) -> int:
        """Of a sequence: the state and the convolution's tail, float32."""
        return 4 * (self.value_size * self.key_dim + (self.conv_width - 1) * self.conv_channels)

    @property
    def in_rows(self) -> tuple[int, int, int, int]:
        """Rows of qkv, z, b and a."""
        return self.conv_channels, self.value_size, self.num_value_heads, self.num_value_heads

    def params(self) -> tuple[ParamSpec, ...]:
        h = self.hidden_size
        heads = tuple(ParamSpec(name=name, shape=(self.num_value_heads,), role="scalar")
                      for name in ("dt_bias", "a_log"))
        return (ParamSpec(name="norm.weight", shape=(h,), role="norm"),
                ParamSpec(name="in.weight", shape=(sum(self.in_rows), h), role="linear"),
                ParamSpec(name="conv.weight", shape=(self.conv_channels, 1, self.conv_width), role="scalar"),
                *heads, ParamSpec(name="gated_norm.weight", shape=(self.value_dim,), role="norm"),
                ParamSpec(name="out.weight", shape=(h, self.value_size), role="linear"))

    def cost(self) -> tuple[CostLine, ...]:
        """The scan as a recurrence, which is the least that must run: seven operations an element of the
        state and token, and the state read and written once a step."""
        scan = 7.0 * self.value_size * self.key_dim + 2.0 * self.conv_width * self.conv_channels
        state = form(rows=float(self.state_bytes))
        return (
            CostLine(op="in", flops=form(tokens=2.0 * sum(self.in_rows) * self.hidden_size),
                     weights=("norm.weight", "in.weight")),
            CostLine(op="scan", flops=form(tokens=scan), read=state, written=state,
                     weights=("conv.weight", "dt_bias", "a_log")),
            CostLine(op="out", flops=form(tokens=2.0 * self.value_size * self.hidden_size),
                     weights=("gated_norm.weight", "out.weight")),
        )

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return (State(num_bytes=self.state_bytes),)
