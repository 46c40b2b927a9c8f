"""The contract of a block: a torch-free description that answers params(), cost() and cache()."""

from dataclasses import dataclass
from typing import Protocol

from ridgeline.spec.cache import CacheSpec
from ridgeline.spec.cost import CostLine


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSpec:
    """One tensor that a block owns.

    name: local to the block ("qkv.weight"); the full name is "layers.{i}.{block}.{name}".
    shape: as the module holds it ([out, in] for a linear, [experts, out, in] for a stack of them). role:
    "linear", "plain" (a matrix that its block needs as a tensor), "bias", "norm", "embed" or "scalar"; only
    "linear" (and a head) is ever quantized, and "scalar" is held in float32 whatever the others are (routers,
    what a sigmoid or an exponential depends on). shard: the axis that tensor parallelism cuts, None to
    replicate.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    shard: int | None = None

    @property
    def num_elements(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product


class BlockSpec(Protocol):
    """A frozen description of one block of a layer. `kind` names its room in blocks/table.py."""

    @property
    def kind(self) -> str: ...

    def params(self) -> tuple[ParamSpec, ...]:
        """Every tensor of the block, in a fixed order."""
        ...

    def cost(self) -> tuple[CostLine, ...]:
        """Coefficients of FLOPs and bytes over a step's sums, weights' bytes apart (the ledger knows
        their format).
        """
        ...

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        """What a sequence keeps for this block; () for blocks without memory."""
        ...
