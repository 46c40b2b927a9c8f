"""One measured kernel: what it took, what it moved and computed, and its floor."""

from dataclasses import dataclass

from ridgeline.engine.ceilings import Ceilings


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One kernel. cublas_s: of the bare product, None where there is none to compare."""

    name: str
    rows: int
    seconds: float
    num_bytes: int
    flops: int
    floor_s: float
    cublas_s: float | None = None

    def text(self, ceilings: Ceilings) -> str:
        if self.num_bytes / ceilings.read_bytes_s >= self.flops / ceilings.flops_s:
            rate = f"{self.num_bytes / self.seconds / 1e9:5.0f} GB/s   "
        else:
            rate = f"{self.flops / self.seconds / 1e12:5.0f} TFLOP/s"
        beside = "" if self.cublas_s is None else f"; cuBLAS {self.cublas_s * 1e6:.2f}"
        return (f"  {self.rows:4} rows  {self.name:10}{self.seconds * 1e6:8.2f} us  {rate} "
                f"{self.floor_s / self.seconds:4.0%} of the wall{beside}")
