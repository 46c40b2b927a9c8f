"""Number formats as bytes. Torch-free: names are the checkpoint's own (safetensors and GGUF spell them apart)."""

from dataclasses import dataclass

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1, "uint8": 1, "int32": 4,
               "int64": 8, "float64": 8, "int16": 2, "bool": 1}


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
    WeightFormat(name="float32", bits=32), WeightFormat(name="bfloat16", bits=16), WeightFormat(name="float16", bits=16),
    WeightFormat(name="q4_g32", bits=4, group_size=32, overhead_bits=32),
    WeightFormat(name="q8_g32", bits=8, group_size=32, overhead_bits=16),
    WeightFormat(name="int8_row", bits=8, group_size=None, overhead_bits=16),
)}
