"""The gated feed-forward block, its norm and residual included."""

from dataclasses import dataclass

from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    """x + down(act(gate(norm(x))) * up(norm(x))), or x + post_norm(down(...)); gate_up holds gate's rows
    first, then up's. scaled: the sum is multiplied by a learnt number. Described and not run: pre_norm False,
    without a norm before it (OLMo 2)."""

    hidden_size: int
    intermediate_size: int
    norm_eps: float
    activation: str = "silu"
    bias: bool = False
    post_norm: bool = False
    scaled: bool = False
    pre_norm: bool = True

    @property
    def described(self) -> bool:
        """True when no module runs it."""
        return not self.pre_norm

    @property
    def kind(self) -> str:
        return "mlp"

    def params(self) -> tuple[ParamSpec, ...]:
        h, f = self.hidden_size, self.intermediate_size
        found = [ParamSpec(name="norm.weight", shape=(h,), role="norm")][:self.pre_norm]
        found.append(ParamSpec(name="gate_up.weight", shape=(2 * f, h), role="linear", shard=0))
        if self.bias:
            found.append(ParamSpec(name="gate_up.bias", shape=(2 * f,), role="bias", shard=0))
        found.append(ParamSpec(name="down.weight", shape=(h, f), role="linear", shard=1))
        if self.bias:
            found.append(ParamSpec(name="down.bias", shape=(h,), role="bias"))
        if self.post_norm:
            found.append(ParamSpec(name="post_norm.weight", shape=(h,), role="norm"))
        if self.scaled:
            found.append(ParamSpec(name="scale", shape=(1,), role="scalar"))
        return tuple(found)

    def cost(self) -> tuple[CostLine, ...]:
        h, f = self.hidden_size, self.intermediate_size
        return (
            CostLine(op="gate_up", flops=form(tokens=4.0 * h * f),
                     weights=(("norm.weight",) if self.pre_norm else ()) + ("gate_up.weight",)
                     + (("gate_up.bias",) if self.bias else ())),
            CostLine(op="down", flops=form(tokens=2.0 * h * f),
                     weights=("down.weight",) + (("down.bias",) if self.bias else ())
                     + (("post_norm.weight",) if self.post_norm else ())
                     + (("scale",) if self.scaled else ())),
        )

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return ()
