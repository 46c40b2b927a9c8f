"""Number formats as bytes. Torch-free: the names of dtypes are torch's own, without the prefix."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ridgeline.spec.block import ParamSpec
from ridgeline.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How a weight is stored: `bits` a weight plus the scales and zero points of each group.

    group_size None means one scale a row. overhead_bits: scale and zero-point bits a group. group_rows: rows
    that share a group (blocks of FP8). dtype: what a device multiplies in when it multiplies the format as it
    is ("" when it is unpacked first).
    """

    name: str
    bits: float
    group_size: int | None = None
    overhead_bits: int = 0
    group_rows: int = 1
    dtype: str = ""

    def num_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a [rows, columns] weight, scales included."""
        across = 1 if self.group_size is None else -(-columns // self.group_size)
        groups = -(-rows // self.group_rows) * across
        return int(rows * columns * self.bits / 8 + groups * self.overhead_bits / 8)


# Scales are float16 or bfloat16 in the integer formats, float32 in FP8 (compressed-tensors a row, DeepSeek a
# block), one byte in MXFP4 (OCP MX v1.0) and NVFP4; "_zero" has a zero point of the weight's width (AWQ).
FORMATS = {f.name: f for f in (
    WeightFormat(name="float32", bits=32, dtype="float32"),
    WeightFormat(name="bfloat16", bits=16, dtype="bfloat16"),
    WeightFormat(name="float16", bits=16, dtype="float16"),
    WeightFormat(name="q4_g32", bits=4, group_size=32, overhead_bits=32),
    WeightFormat(name="q8_g32", bits=8, group_size=32, overhead_bits=16),
    WeightFormat(name="int8_row", bits=8, group_size=None, overhead_bits=16, dtype="int8"),
    WeightFormat(name="fp8", bits=8, group_size=None, overhead_bits=32, dtype="float8_e4m3fn"),
    WeightFormat(name="fp8_b128", bits=8, group_size=128, overhead_bits=32, group_rows=128,
                 dtype="float8_e4m3fn"),
    WeightFormat(name="int4_g32", bits=4, group_size=32, overhead_bits=16),
    WeightFormat(name="int4_g32_zero", bits=4, group_size=32, overhead_bits=20),
    WeightFormat(name="int4_g128", bits=4, group_size=128, overhead_bits=16),
    WeightFormat(name="int4_g128_zero", bits=4, group_size=128, overhead_bits=20),
    WeightFormat(name="mxfp4", bits=4, group_size=32, overhead_bits=8, dtype="float4_e2m1fn"),
    WeightFormat(name="nvfp4", bits=4, group_size=16, overhead_bits=8, dtype="float4_e2m1fn"),
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

    @staticmethod
    def stored(spec: ModelSpec) -> "WeightPlan":
        """As the checkpoint holds the model: the blocks' matrices quantized but for spec.stored_plain; head,
        embedding and norms are of the checkpoint's own float type."""
        plain = FORMATS[spec.dtype]
        packed = FORMATS[spec.stored_as] if spec.stored_as else plain
        kept = {name: plain for name, param in spec.params()
                if param.role == "linear" and any(part in name for part in spec.stored_plain)}
        return WeightPlan(linear=packed, head=plain, embed=plain, other=plain, exceptions=kept)

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
