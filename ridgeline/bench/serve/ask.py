"""What a load test is asked, in seconds and tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.workload.ask import WorkloadAsk


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeAsk:
    """url: of the server; model: None for its first. endpoint: "completions" or "chat". goodput: targets in
    seconds of "ttft", "tpot" and "e2el", each if wanted. max_concurrency: requests under way at a time; the
    others wait, and their waiting counts. timeout_s: of a whole request. num_warmups: requests before, not
    counted. percentiles: of every latency. ignore_eos: answers as long as asked. max_failed: share of
    requests that may fail. save, html: files to write.
    """

    url: str
    workload: WorkloadAsk
    model: str | None = None
    api_key: str | None = None
    endpoint: str = "completions"
    goodput: Mapping[str, float] = field(default_factory=dict)
    max_concurrency: int | None = None
    timeout_s: float = 600.0
    num_warmups: int = 2
    percentiles: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0, 99.9)
    ignore_eos: bool = True
    max_failed: float = 0.1
    save: Path | None = None
    html: Path | None = None
    json: bool = False
    progress: bool = True
