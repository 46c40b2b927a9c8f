"""The feed-forward block without a gate, its norm and residual included. Described, not run yet."""

from dataclasses import dataclass

from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardSpec:
    """x + down(act(up(norm(x)))). norm: "rms", "layer" (with a bias) or "" where it shares another block's,
    as one does that stands beside the attention (Falcon-7B)."""

    hidden_size: int
    intermediate_size: int
    norm: str = "rms"
    bias: bool = False

    @property
    def kind(self) -> str:
        return "feed_forward"

    def params(self) -> tuple[ParamSpec, ...]:
        h, f = self.hidden_size, self.intermediate_size
        found = []
        if self.norm:
            found.append(ParamSpec(name="norm.weight", shape=(h,), role="norm"))
        if self.norm == "layer":
            found.append(ParamSpec(name="norm.bias", shape=(h,), role="norm"))
        found += [ParamSpec(name="up.weight", shape=(f, h), role="linear", shard=0),
                  ParamSpec(name="down.weight", shape=(h, f), role="linear", shard=1)]
        if self.bias:
            found += [ParamSpec(name="up.bias", shape=(f,), role="bias", shard=0),
                      ParamSpec(name="down.bias", shape=(h,), role="bias")]
        return tuple(found)

    def cost(self) -> tuple[CostLine, ...]:
        flops = form(tokens=2.0 * self.hidden_size * self.intermediate_size)
        names = [param.name for param in self.params()]
        return (CostLine(op="up", flops=flops,
                         weights=tuple(name for name in names if not name.startswith("down."))),
                CostLine(op="down", flops=flops,
                         weights=tuple(name for name in names if name.startswith("down."))))

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return ()
