"""A layer's own small embedding of each token, gated into the residual (Gemma 3n and 4). Described, not run
yet."""

from dataclasses import dataclass

from ridgeline.spec.block import ParamSpec
from ridgeline.spec.cache import CacheSpec
from ridgeline.spec.cost import CostLine, form


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputSpec:
    """x + norm(out(act(gate(x)) * e)), where e [width] is the layer's part of what the token's row of one
    table and a projection of its embedding give for all layers at once.

    table_rows: rows of that table in the one layer that holds it, 0 in all others; table_layers: layers it
    serves. A step gathers one row a token of it.
    """

    hidden_size: int
    width: int
    table_rows: int = 0
    table_layers: int = 0

    @property
    def kind(self) -> str:
        return "per_layer_input"

    def params(self) -> tuple[ParamSpec, ...]:
        h, w, all_w = self.hidden_size, self.width, self.width * self.table_layers
        found = [ParamSpec(name="gate.weight", shape=(w, h), role="linear"),
                 ParamSpec(name="out.weight", shape=(h, w), role="linear"),
                 ParamSpec(name="norm.weight", shape=(h,), role="norm")]
        if self.table_rows:
            found += [ParamSpec(name="table.weight", shape=(self.table_rows, all_w), role="embed"),
                      ParamSpec(name="project.weight", shape=(all_w, h), role="linear"),
                      ParamSpec(name="project_norm.weight", shape=(w,), role="norm")]
        return tuple(found)

    def cost(self) -> tuple[CostLine, ...]:
        h, w = self.hidden_size, self.width
        lines = [CostLine(op="gate", flops=form(tokens=4.0 * h * w),
                          weights=("gate.weight", "out.weight", "norm.weight"))]
        if self.table_rows:
            lines.insert(0, CostLine(
                op="table", flops=form(tokens=2.0 * h * w * self.table_layers), share_of=("table.weight",),
                share=form(tokens=1.0 / self.table_rows), weights=("project.weight", "project_norm.weight")))
        return tuple(lines)

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return ()
