"""The Mamba-2 block (Dao & Gu 2024), its norm and residual included."""

from dataclasses import dataclass

from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec, State
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Spec:
    """x + out(gated_norm(scan(conv(in(norm(x)))))).

    state_size: width of B and C, which num_groups groups of heads share. conv_width: tokens that the
    convolution sees, the current one counted. in_proj holds the rows of z, x, B, C and dt, in this order; the
    gated norm is over each group by itself.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_width: int
    norm_eps: float
    conv_bias: bool = True
    bias: bool = False

    @property
    def kind(self) -> str:
        return "mamba2"

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def state_bytes(self) -> int:
        """Of a sequence: the state and the convolution's tail, float32."""
        return 4 * (self.inner_size * self.state_size + (self.conv_width - 1) * self.conv_channels)

    def params(self) -> tuple[ParamSpec, ...]:
        h, inner, conv = self.hidden_size, self.inner_size, self.conv_channels
        rows = inner + conv + self.num_heads
        heads = tuple(ParamSpec(name=name, shape=(self.num_heads,), role="scalar")
                      for name in ("dt_bias", "a_log", "skip"))
        found = [ParamSpec(name="norm.weight", shape=(h,), role="norm"),
                 ParamSpec(name="in.weight", shape=(rows, h), role="linear"),
                 ParamSpec(name="conv.weight", shape=(conv, 1, self.conv_width), role="scalar"), *heads,
                 ParamSpec(name="gated_norm.weight", shape=(inner,), role="norm"),
                 ParamSpec(name="out.weight", shape=(h, inner), role="linear")]
        if self.conv_bias:
            found.append(ParamSpec(name="conv.bias", shape=(conv,), role="scalar"))
        if self.bias:
            found += [ParamSpec(name="in.bias", shape=(rows,), role="bias"),
                      ParamSpec(name="out.bias", shape=(h,), role="bias")]
        return tuple(found)

    def cost(self) -> tuple[CostLine, ...]:
        """The scan as a recurrence, which is the least that must run: five operations an element of the state
        and token, and the state read and written once a step."""
        names = {param.name for param in self.params()}
        inner, conv = self.inner_size, self.conv_channels
        scan = 5.0 * inner * self.state_size + 2.0 * self.conv_width * conv
        state = form(rows=float(self.state_bytes))
        return (
            CostLine(op="in", flops=form(tokens=2.0 * (inner + conv + self.num_heads) * self.hidden_size),
                     weights=tuple(sorted(names & {"norm.weight", "in.weight", "in.bias"}))),
            CostLine(op="scan", flops=form(tokens=scan), read=state, written=state,
                     weights=tuple(sorted(names & {"conv.weight", "conv.bias", "dt_bias", "a_log", "skip"}))),
            CostLine(op="out", flops=form(tokens=2.0 * inner * self.hidden_size),
                     weights=tuple(sorted(names & {"gated_norm.weight", "out.weight", "out.bias"}))),
        )

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return (State(num_bytes=self.state_bytes),)
