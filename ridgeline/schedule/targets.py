"""Latency targets: what a request is promised, and what counts towards goodput."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Seconds; None: no target. ttft_s: from arrival to the first token; tpot_s: per token after it."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def met(self, ttft_s: float | None, tpot_s: float | None) -> bool:
        """Whether a request with these latencies counts as good.

        ttft_s is None for a request without a first token, which meets nothing; tpot_s is None for a single
        token, which has no time between tokens.
        """
        if ttft_s is None or (self.ttft_s is not None and ttft_s > self.ttft_s):
            return False
        return self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s


NO_TARGETS = Targets()
