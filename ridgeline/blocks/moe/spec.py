"""The mixture-of-experts block, norm and residual included: router, experts, shared expert."""

from dataclasses import dataclass

from ridgeline.base.errors import ConfigError
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec
from ridgeline.spec.cost import CostLine, distinct, form


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """Which experts a token takes, and with what weights.

    score: "softmax" or "sigmoid" of the logits over all experts, or "chosen": the best logits are taken, and
    the softmax over them alone are the weights. bias: of the logits. choice_bias: a learnt number an expert,
    added to the scores for the choice and for nothing else. num_groups, top_groups: experts stand in so many
    equal groups and only the best top_groups are open; a group is as good as its best group_best experts
    together. renormalize: the chosen weights are made to sum to one. scale: multiplies them
    (DeepSeek-V2, arXiv 2405.04434, section 2.2; V3, 2412.19437, section 2.1.2).
    """

    num_experts: int
    top_k: int
    score: str = "softmax"
    bias: bool = False
    choice_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    renormalize: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.top_k > self.num_experts:
            raise ConfigError(f"num_experts_per_tok is {self.top_k}: of only {self.num_experts} experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """x + sum over the chosen experts of weight * expert(norm(x)) [+ shared(norm(x))].

    An expert is down(act(gate, up)), as in the mlp room; the weights of all experts stand in one tensor
    [experts, out, in] whose gate_up matrices hold gate's rows first. intermediate_size: of one expert. bias:
    of the experts' products. shared_size: width of the expert that every token takes, 0 without one;
    shared_gate: its result is multiplied by sigmoid(w . norm(x)). gated: False where every expert is
    down(act(up)) alone, which is described and not run (Nemotron 3). beside: further small tensors of a
    family that is described and not run (Gemma 4).
    """

    hidden_size: int
    intermediate_size: int
    norm_eps: float
    router: RouterSpec
    activation: str = "silu"
    bias: bool = False
    shared_size: int = 0
    shared_gate: bool = False
    gated: bool = True
    beside: tuple[ParamSpec, ...] = ()

    @property
    def described(self) -> bool:
        """True when no module runs it."""
        return bool(self.beside) or not self.gated

    @property
    def kind(self) -> str:
        return "moe"

    def params(self) -> tuple[ParamSpec, ...]:
        h, f, e = self.hidden_size, self.intermediate_size, self.router.num_experts
        first, ups = ("gate_up", 2) if self.gated else ("up", 1)
        found = [ParamSpec(name="norm.weight", shape=(h,), role="norm"),
                 ParamSpec(name="router.weight", shape=(e, h), role="scalar"), *self.beside]
        if self.router.bias:
            found.append(ParamSpec(name="router.bias", shape=(e,), role="scalar"))
        if self.router.choice_bias:
            found.append(ParamSpec(name="router.choice_bias", shape=(e,), role="scalar"))
        found.append(ParamSpec(name=f"{first}.weight", shape=(e, ups * f, h), role="linear", shard=1))
        if self.bias:
            found.append(ParamSpec(name=f"{first}.bias", shape=(e, ups * f), role="bias", shard=1))
        found.append(ParamSpec(name="down.weight", shape=(e, h, f), role="linear", shard=2))
        if self.bias:
            found.append(ParamSpec(name="down.bias", shape=(e, h), role="bias"))
        if self.shared_size:
            found += [ParamSpec(name=f"shared_{first}.weight", shape=(ups * self.shared_size, h),
                                role="linear", shard=0),
                      ParamSpec(name="shared_down.weight", shape=(h, self.shared_size), role="linear",
                                shard=1)]
        if self.shared_gate:
            found.append(ParamSpec(name="shared_gate.weight", shape=(1, h), role="scalar"))
        return tuple(found)

    def cost(self) -> tuple[CostLine, ...]:
        """A step reads the weights of the distinct experts that its tokens choose, each once."""
        h, f, e, k = self.hidden_size, self.intermediate_size, self.router.num_experts, self.router.top_k
        names = [param.name for param in self.params()]
        small = ("norm.", "router.", *(param.name for param in self.beside))
        router = tuple(name for name in names if name.startswith(small))
        experts = tuple(name for name in names if name.startswith(("gate_up.", "up.", "down.")))
        each = 6.0 if self.gated else 4.0
        lines = [
            CostLine(op="router", flops=form(tokens=2.0 * h * e), weights=router),
            CostLine(op="experts", flops=form(tokens=each * h * f * k), share=distinct(e, k, 1.0 / e),
                     share_of=experts)]
        if self.shared_size:
            gate = 2.0 * h if self.shared_gate else 0.0
            lines.append(CostLine(op="shared", flops=form(tokens=each * h * self.shared_size + gate),
                                  weights=tuple(name for name in names if name.startswith("shared_"))))
        return tuple(lines)

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return ()
