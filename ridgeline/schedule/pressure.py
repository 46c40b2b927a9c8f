"""What memory pressure is met with: prices of bringing a victim back, and room that admission leaves."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """recompute_s: seconds to compute the first so many tokens of a request again. swap_s: seconds to send so
    many bytes to the host and fetch them back; None where there is no host memory for them: whoever is
    preempted is computed again. watermark_bytes: of the cache, left free when a request starts beside others.
    """

    recompute_s: Callable[[int], float] | None = None
    swap_s: Callable[[int], float] | None = None
    watermark_bytes: int = 0

    def swaps(self, num_tokens: int, num_bytes: int) -> bool:
        """Whether a victim of so many tokens and bytes is cheaper to send away than to compute again."""
        if self.swap_s is None:
            return False
        return self.recompute_s is None or self.swap_s(num_bytes) < self.recompute_s(num_tokens)


NO_PRESSURE = Pressure()
