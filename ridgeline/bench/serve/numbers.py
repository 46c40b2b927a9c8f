"""The numbers of a load test, named as `vllm bench serve` names them: what reads its files reads ours.

Where they differ: latencies count from the intended send time, an end is the last chunk with
text, and only whole answers count. What vLLM's files do not have stands under "ridgeline".
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any

from ridgeline.base.stats import percentiles
from ridgeline.bench.serve.ask import ServeAsk
from ridgeline.bench.serve.client import Observed

METRICS = ("ttft", "tpot", "itl", "e2el")


def result(ask: ServeAsk, model: str, about: str, observed: Sequence[Observed], *,
           uniform: bool) -> dict[str, Any]:
    """A load test as one JSON object. about: the workload; uniform: its requests are about equally long."""
    whole = [one for one in observed if one.failure is None]
    start_s = min(one.intended_s - one.offered.arrived_s for one in observed)
    duration_s = max(one.ended_s for one in observed) - start_s
    total_input, total_output = sum(one.num_prompt for one in whole), sum(one.num_output for one in whole)
    good = sum(is_good(one, ask.goodput) for one in whole) if ask.goodput else None
    kind, _, setting = ask.workload.arrival.partition(":")
    found: dict[str, Any] = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"), "backend": _backend(ask),
        "endpoint_type": _backend(ask), "label": None, "model_id": model, "tokenizer_id": model,
        "num_prompts": len(observed), "request_rate": ask.workload.rate or "inf",
        "burstiness": float(setting) if kind == "gamma" else 1.0, "max_concurrency": ask.max_concurrency,
        "duration": duration_s, "completed": len(whole), "failed": len(observed) - len(whole),
        "total_input_tokens": total_input, "total_output_tokens": total_output,
        "request_throughput": len(whole) / duration_s,
        "request_goodput": None if good is None else good / duration_s,
        "output_throughput": total_output / duration_s,
        "total_token_throughput": (total_input + total_output) / duration_s,
        **_peaks(observed, whole, start_s)}
    for name, values_s in latencies(whole).items():
        found |= _statistics(name, values_s, ask.percentiles)
    found["ridgeline"] = {"workload": about, "uniform_lengths": uniform,
                          **_asked(ask), **_seen(ask, observed, whole, good)}
    return found | _details(observed, start_s)


def is_good(one: Observed, goodput: Mapping[str, float]) -> bool:
    """Whether a whole answer meets every goal. One token has no time between tokens, which meets any."""
    values = {"ttft": one.ttft_s, "tpot": one.tpot_s or 0.0, "e2el": one.e2e_s}
    return all(values[name] <= most_s for name, most_s in goodput.items())


def latencies(whole: Sequence[Observed]) -> dict[str, list[float]]:
    """Seconds by METRICS. itl: between chunks with text, whatever each holds."""
    return {"ttft": [one.ttft_s for one in whole],
            "tpot": [t for one in whole if (t := one.tpot_s) is not None],
            "itl": [gap for one in whole for gap in _gaps(one)], "e2el": [one.e2e_s for one in whole]}


def _gaps(one: Observed) -> list[float]:
    return [after - before for before, after in pairwise(one.times_s)]


def _statistics(name: str, values_s: Sequence[float], points: Sequence[float]) -> dict[str, float]:
    values = [value * 1e3 for value in values_s] or [0.0]
    found = {f"mean_{name}_ms": fmean(values), f"median_{name}_ms": median(values),
             f"std_{name}_ms": pstdev(values)}
    return found | {f"{point}_{name}_ms": value for point, value in percentiles(values, points).items()}


def _peaks(observed: Sequence[Observed], whole: Sequence[Observed], start_s: float) -> dict[str, float]:
    """The busiest second's tokens (a request's tokens spread evenly over its chunks), and most under way, of
    those too that failed."""
    tokens: defaultdict[int, float] = defaultdict(float)
    for one in whole:
        for time_s in one.times_s:
            tokens[int(time_s - start_s)] += one.num_output / len(one.times_s)
    changes = sorted([(one.sent_s, 1) for one in observed] + [(one.ended_s, -1) for one in observed])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return {"max_output_tokens_per_s": max(tokens.values(), default=0.0), "max_concurrent_requests": most}


def _asked(ask: ServeAsk) -> dict[str, Any]:
    workload = ask.workload
    return {"url": ask.url, "dataset": workload.trace or workload.lengths, "arrival": workload.arrival,
            "rate_scale": workload.rate_scale, "length_scale": workload.length_scale, "seed": workload.seed,
            "asked_duration_s": workload.duration_s, "patience_s": workload.patience_s,
            "num_warmups": ask.num_warmups,
            "percentiles": list(ask.percentiles), "latencies_from": "the intended send time",
            "goodput_ms": {name: most_s * 1e3 for name, most_s in ask.goodput.items()}}


def _seen(ask: ServeAsk, observed: Sequence[Observed], whole: Sequence[Observed],
          good: int | None) -> dict[str, Any]:
    spent = [(one.times_s[-1] - one.times_s[0], one.num_output - 1) for one in whole if one.num_output > 1]
    return {
        "attainment": None if good is None else good / len(observed),
        "pooled_tpot_ms": 1e3 * sum(t for t, _ in spent) / sum(n for _, n in spent) if spent else None,
        "failures": dict(Counter(one.failure for one in observed if one.failure)),
        "asked_input_tokens": sum(one.offered.num_prompt for one in whole),
        "asked_output_tokens": sum(one.offered.num_output for one in whole),
        "cached_input_tokens": sum(one.num_cached for one in whole),
        "num_tiles": sum(one.offered.num_tiles for one in observed),
        "num_chunks": sum(len(one.times_s) for one in whole),
        "without_usage": sum(not one.counted for one in whole),
        "usage_below_chunks": sum(one.num_output < len(one.times_s) for one in whole),
        "usage_above_text": sum(one.num_output > one.num_bytes for one in whole),
        "usage_above_asked": sum(one.num_output > one.offered.num_output for one in whole),
        "send_lag_ms": percentiles(((one.sent_s - one.intended_s) * 1e3 for one in observed),
                                   ask.percentiles)}


def _details(observed: Sequence[Observed], start_s: float) -> dict[str, Any]:
    """A list item for each request, in seconds, in the order of the workload."""
    return {"input_lens": [one.num_prompt for one in observed],
            "output_lens": [one.num_output for one in observed],
            "ttfts": [one.ttft_s if one.failure is None else 0.0 for one in observed],
            "itls": [_gaps(one) for one in observed],
            "start_times": [one.intended_s - start_s for one in observed],
            "errors": [f"{one.failure}: {one.detail}" if one.failure else "" for one in observed]}


def _backend(ask: ServeAsk) -> str:
    return "openai-chat" if ask.endpoint == "chat" else "openai"
