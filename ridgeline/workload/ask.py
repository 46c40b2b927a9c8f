"""A workload as people ask for it: a trace, or lengths and arrivals drawn at random."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAsk:
    """What the flags of `simulate` and `bench serve` say alike.

    trace: a file, or the name of a known format and a file ("mooncake:FILE"); its lengths take the place of
    `lengths`, and its arrivals are kept unless `rate` or closed arrivals are asked for. lengths: "sharegpt",
    "azure-conv", "azure-code", "arxiv", "lognormal:...", "uniform:...", "fixed:...", "prefix:...". arrival:
    "poisson", "gamma:SHAPE", "trace", "closed:N" (N at a time). rate: requests a second. rate_scale presses a
    trace's arrivals together. num_requests, duration_s: where it ends, whichever comes first. length_scale
    multiplies prompts and outputs. patience_s: each client goes away so long after it came. seed: the same
    requests again, at any rate.
    """

    trace: str | None = None
    lengths: str | None = None
    arrival: str = "poisson"
    rate: float | None = None
    rate_scale: float = 1.0
    num_requests: int | None = None
    duration_s: float | None = None
    length_scale: float = 1.0
    patience_s: float | None = None
    seed: int = 0
