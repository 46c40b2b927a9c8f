"""The gated feed-forward block. Knows no weight format: all its products come from Parts."""

from collections.abc import Hashable, Sequence

from torch import Tensor

from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.parts import Parts
from ridgeline.blocks.step import CacheRegion, Step


class Mlp:
    """See MlpSpec."""

    capturable = True
    tokenwise = True

    def __init__(self, spec: MlpSpec, parts: Parts) -> None:
        self._gate_up = parts.gated_linear("norm", "gate_up", spec.norm_eps, spec.activation)
        self._down = parts.linear_add("down", "post_norm" if spec.post_norm else None, spec.norm_eps)
        self._scale_1 = parts.tensor("scale") if spec.scaled else None

    def bind(self, regions: Sequence[CacheRegion]) -> None:
        assert not regions, "a feed-forward block keeps nothing"

    def share_key(self) -> Hashable:
        return "mlp"

    def prepare(self, step: Step) -> None:
        return None

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        out_TH = self._down(self._gate_up(x_TH, step.prefill_from), x_TH, step.prefill_from)
        return out_TH if self._scale_1 is None else out_TH.mul_(self._scale_1)
