"""What a GPU reaches: the ceilings that kernels and plans are held to. Measured, in seconds."""

from dataclasses import dataclass

import torch

from ridgeline.engine.timing import median_s

_READ_FLOATS = 1 << 29  # many times any cache, and small beside an engine that has taken its memory
_COPY_FLOATS = _READ_FLOATS // 2
_SIDE = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What this GPU reaches, in bytes and FLOPs a second. copy: bytes read plus bytes written. flops: in
    bfloat16."""

    read_bytes_s: float
    copy_bytes_s: float
    flops_s: float
    float32_flops_s: float

    def floor_s(self, num_bytes: float, flops: float) -> float:
        return max(num_bytes / self.read_bytes_s, flops / self.flops_s)


def measure_ceilings(device: torch.device) -> Ceilings:
    """Reading by a sum, copying, and a bfloat16 product of two 8192 by 8192 matrices. Takes 2.5 GiB."""
    big = torch.ones(_READ_FLOATS, device=device)
    read = big.nbytes / median_s(lambda: torch.sum(big))
    half, other = big[:_COPY_FLOATS], big[_COPY_FLOATS:]
    copy = 2 * half.nbytes / median_s(lambda: other.copy_(half))
    a, b = (torch.randn(_SIDE, _SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))
    wide_a, wide_b = (x[: _SIDE // 2, : _SIDE // 2].float() for x in (a, b))
    return Ceilings(read_bytes_s=read, copy_bytes_s=copy, flops_s=2 * _SIDE**3 / median_s(lambda: a @ b),
                    float32_flops_s=_SIDE**3 / 4 / median_s(lambda: wide_a @ wide_b))
