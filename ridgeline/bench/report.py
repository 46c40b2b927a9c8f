"""What a benchmark saw, as numbers and as text. Seconds, bytes, FLOPs; percentiles by their usual names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ridgeline.base.stats import latencies
from ridgeline.base.trace import RequestRecord, StepRecord
from ridgeline.base.units import format_bytes
from ridgeline.ledger.price import Price
from ridgeline.ledger.profile import MachineProfile


class StepOf:
    """A finished step in the ledger's terms. A record holds sums: its chunks count as equally long, and its
    rows as having equally many tokens before them."""

    def __init__(self, record: StepRecord) -> None:
        chunk = record.prefill_tokens / max(record.num_chunks, 1)
        self.count = np.repeat([1.0, chunk], [record.num_decodes, record.num_chunks])
        self.start = np.full(len(self.count), (record.context_tokens - record.num_tokens) / len(self.count))
        self.num_sampled = record.num_sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsSummary:
    """Steps of one kind, at their median. share: floor over measured. tokens: a step computes."""

    num_steps: int
    tokens: int
    measured_s: float
    floor_s: float
    read_bytes: float
    flops: float
    share: float

    @property
    def tok_s(self) -> float:
        return self.tokens / self.measured_s


def summarize(records: Iterable[StepRecord], price: Price) -> StepsSummary | None:
    """The median step of `records`, which must be of one kind: decodes alone or prompt chunks alone."""
    steps = [(record, StepOf(record)) for record in records]
    if not steps:
        return None
    floors = [price(step) for _, step in steps]
    moved = [price.moved(step) for _, step in steps]
    measured = [record.measured_s for record, _ in steps]
    shares = [floor / seconds for floor, seconds in zip(floors, measured, strict=True)]
    return StepsSummary(
        num_steps=len(steps), tokens=int(median(record.num_tokens for record, _ in steps)),
        measured_s=median(measured), floor_s=median(floors), read_bytes=median(read for read, _, _ in moved),
        flops=median(flops for _, _, flops in moved), share=median(shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark. wall_s: from the first request to the end of the last.

    decode: steps of decodes alone, with every row busy. prefill: steps of prompt chunks alone.
    """

    what: str
    model: str
    numerics: str
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    wall_s: float
    requests: Sequence[RequestRecord]
    decode: StepsSummary | None
    prefill: StepsSummary | None
    machine: MachineProfile

    @property
    def output_tok_s(self) -> float:
        return sum(record.num_output for record in self.requests) / self.wall_s

    def as_json(self) -> dict[str, object]:
        """Stable keys; percentiles as {"p50": ..., "p99": ...} in seconds."""
        times = latencies(self.requests)
        return {
            "bench": self.what, "model": self.model, "numerics": self.numerics,
            "num_requests": len(self.requests), "concurrency": self.concurrency,
            "prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens, "wall_s": self.wall_s,
            "output_tok_s": self.output_tok_s,
            "total_tok_s": sum(r.num_prompt + r.num_output for r in self.requests) / self.wall_s,
            "ttft_s": times["ttft"], "tpot_s": times["tpot"], "itl_s": times["itl"], "e2e_s": times["e2e"],
            "decode_step": _steps_json(self.decode), "prefill_step": _steps_json(self.prefill),
            "read_bytes_per_s": self.machine.read_bytes_per_s,
            "flops_per_s": dict(self.machine.flops_per_s),
            "threads": self.machine.threads, "machine": dict(self.machine.about)}

    def text(self) -> str:
        """The same for a reader."""
        about = self.machine.about
        lines = [
            f"{self.what}: {self.model} ({self.numerics})",
            f"  {about.get('gpu', about['processor'])}, {self.machine.threads} of {about['cores']} cores, "
            f"torch {about['torch']}, commit {about['commit']}, load {about['load']} before",
            f"  measured in this run: {self.machine.text()}",
            f"  {len(self.requests)} requests of {self.prompt_tokens} tokens in, {self.output_tokens} out, "
            f"{self.concurrency} at a time, fresh prompts, after a warm-up",
            "",
            f"  output {self.output_tok_s:.4g} tok/s over {self.wall_s:.3g} s",
        ]
        times = latencies(self.requests)
        for name in ("ttft", "tpot", "e2e"):
            points = "  ".join(f"{p} {seconds_text(s)}" for p, s in times[name].items())
            lines.append(f"  {name.upper():4}   {points}")
        lines += ["", _HEAD, _steps_text("decode", self.decode), _steps_text("prefill", self.prefill)]
        if any(steps.share > 1 for steps in (self.decode, self.prefill) if steps is not None):
            lines.append("  a floor above what was measured: other load held the machine's own rates down; "
                         "run it on an idle machine")
        return "\n".join(lines)


def _steps_json(steps: StepsSummary | None) -> dict[str, float] | None:
    if steps is None:
        return None
    return {"num_steps": steps.num_steps, "tokens": steps.tokens, "tok_s": steps.tok_s,
            "measured_s": steps.measured_s, "floor_s": steps.floor_s, "share_of_floor": steps.share,
            "read_bytes": steps.read_bytes, "flops": steps.flops}


_HEAD = (f"  {'step':9}{'tokens':>7}{'tok/s':>9}{'measured':>10}{'floor':>9}{'share':>7}"
         f"{'reads':>10}{'computes':>13}")


def _steps_text(name: str, steps: StepsSummary | None) -> str:
    """A row under _HEAD."""
    if steps is None:
        return f"  {name:9}no step was of this kind alone"
    return (f"  {name:9}{steps.tokens:7}{steps.tok_s:9.4g}{seconds_text(steps.measured_s):>10}"
            f"{seconds_text(steps.floor_s):>9}{steps.share:7.0%}{format_bytes(steps.read_bytes):>10}"
            f"{f'{steps.flops / 1e9:.3g} GFLOP':>13}")


def seconds_text(seconds: float) -> str:
    """Three figures, in ms below a second."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
