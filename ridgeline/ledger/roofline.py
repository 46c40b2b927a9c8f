"""The roofline: how long a line must take on a device, at the least, and which side binds it."""

from dataclasses import dataclass

from ridgeline.ledger.account import Account, LineCost
from ridgeline.spec.cost import StepSums
from ridgeline.spec.hardware import HardwareSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTime:
    """A line's two times in seconds on one device; its floor is the larger."""

    cost: LineCost
    memory_s: float
    compute_s: float

    @property
    def floor_s(self) -> float:
        return max(self.memory_s, self.compute_s)

    @property
    def bound(self) -> str:
        """ "memory" or "compute"."""
        return "memory" if self.memory_s >= self.compute_s else "compute"


def floors(account: Account, sums: StepSums, device: HardwareSpec, *,
           flops_per_s: float) -> tuple[LineTime, ...]:
    """Every line's floor: max(bytes / bandwidth, FLOPs / rate) (Williams, Waterman and Patterson 2009).

    flops_per_s: the rate of the arithmetic in use, `device.rate(dtype)`.
    """
    return tuple(LineTime(cost=cost, memory_s=(cost.read_bytes + cost.written_bytes) / device.bytes_per_s,
                          compute_s=cost.flops / flops_per_s) for cost in account.at(sums))
