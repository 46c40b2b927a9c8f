"""What a machine reaches of its floors: assumed until a calibration says better. A floor is never scaled by
these; an estimate always is, and says where each factor comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ASSUMED, FITTED, MEASURED = "assumed", "fitted", "measured"
_ALL_ASSUMED: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Factors between floors and estimates.

    bandwidth: share of the memory's bytes/s that a decode step reaches. prefill, encoder: shares of the dense
    peak that a prompt and a vision encoder reach. step_s: a step's time beside its kernels. collective_s:
    latency of one collective. tile_s: a processor's time to cut and resize one image tile. workspace_bytes:
    memory beside weights and cache. sources: "assumed", "fitted" or "measured" by field (absent: assumed).
    band: an estimate's relative error, (low, high); 0 where nobody measured it.
    """

    bandwidth: float = 0.70
    prefill: float = 0.45
    encoder: float = 0.40
    step_s: float = 0.0
    collective_s: float = 6e-6
    tile_s: float = 1.2e-3
    workspace_bytes: int = 2_000_000_000
    sources: Mapping[str, str] = field(default_factory=lambda: _ALL_ASSUMED)
    band: tuple[float, float] = (0.0, 0.0)

    def source(self, name: str) -> str:
        """Where the factor comes from."""
        return self.sources.get(name, ASSUMED)
