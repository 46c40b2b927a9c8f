"""Number formats as bytes. Torch-free: the names of dtypes are torch's own, without the prefix."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ridgeline.spec.block import ParamSpec

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1, "uint8": 1,
               "int32": 4, "int64": 8, "float64": 8, "int16": 2, "bool": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How a weight is stored: `bits` a weight plus the scales and zero points of each group.

    group_size None means one scale a row. overhead_bits: scale and zero-point bits a group.
    """

    name: str
    bits: float
    group_size: int | None = None
    overhead_bits: int = 0

    def num_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a [rows, columns] weight, scales included."""
        groups = rows * (1 if self.group_size is None else -(-columns // self.group_size))
        return int(rows * columns * self.bits / 8 + groups * self.overhead_bits / 8)


FORMATS = {f.name: f for f in (
    WeightFormat(name="float32", bits=32),
    WeightFormat(name="bfloat16", bits=16),
    WeightFormat(name="float16", bits=16),
    WeightFormat(name="q4_g32", bits=4, group_size=32, overhead_bits=32),
    WeightFormat(name="q8_g32", bits=8, group_size=32, overhead_bits=16),
    WeightFormat(name="int8_row", bits=8, group_size=None, overhead_bits=16),
)}

_NO_EXCEPTIONS: Mapping[str, WeightFormat] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """Which format each weight of a model is held in.

    linear: the blocks' matrices. head: the output projection ("head.weight", also where the checkpoint ties
    it to the embedding; another format than embed's then means a second copy). other: norms and biases
    (scalars are float32). exceptions: by the parameter's full name.
    """

    linear: WeightFormat
    head: WeightFormat
    embed: WeightFormat
    other: WeightFormat
    exceptions: Mapping[str, WeightFormat] = field(default_factory=lambda: _NO_EXCEPTIONS)

    @staticmethod
    def uniform(name: str) -> "WeightPlan":
        """Every weight in one format of FORMATS."""
        one = FORMATS[name]
        return WeightPlan(linear=one, head=one, embed=one, other=one)

    def format_of(self, name: str, param: ParamSpec) -> WeightFormat:
        """name: the full one ("layers.3.attn.qkv.weight", "head.weight")."""
        if name in self.exceptions:
            return self.exceptions[name]
        if name == "head.weight":
            return self.head
        if param.role == "scalar":
            return FORMATS["float32"]
        return {"linear": self.linear, "embed": self.embed}.get(param.role, self.other)

    def num_bytes(self, name: str, param: ParamSpec) -> int:
        """Bytes of one parameter as held; leading axes (experts) count as rows."""
        columns = param.shape[-1] if param.shape else 1
        return self.format_of(name, param).num_bytes(param.num_elements // max(columns, 1), columns)
