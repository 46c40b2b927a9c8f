"""Percentiles, and the latencies of requests by their standard names. Seconds throughout."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from ridgeline.base.trace import RequestRecord

POINTS = (50.0, 90.0, 95.0, 99.0)


def percentiles(values: Iterable[float], points: Sequence[float] = POINTS) -> dict[str, float]:
    """{"p50": ..., "p99": ...} with linear interpolation between the two nearest values; empty for no
    values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    result = {}
    for point in points:
        place = (len(ordered) - 1) * point / 100
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        result[f"p{point:g}"] = ordered[low] + (ordered[high] - ordered[low]) * (place - low)
    return result


def ttft_s(record: RequestRecord) -> float | None:
    """Time to first token: from arrival; None when there was none."""
    return None if record.first_token_s is None else record.first_token_s - record.arrived_s


def tpot_s(record: RequestRecord) -> float | None:
    """Time per output token after the first: (finish - first token) / (tokens - 1); None below two tokens."""
    if record.first_token_s is None or record.num_output < 2:
        return None
    return (record.finished_s - record.first_token_s) / (record.num_output - 1)


def e2e_s(record: RequestRecord) -> float:
    """From arrival to the end; equals TTFT + (tokens - 1) * TPOT."""
    return record.finished_s - record.arrived_s


def itl_s(record: RequestRecord) -> Iterator[float]:
    """Inter-token latencies: the gaps between one request's tokens, one for each token after the first."""
    return (after - before for before, after in pairwise(record.token_times_s))


def latencies(records: Iterable[RequestRecord],
              points: Sequence[float] = POINTS) -> dict[str, dict[str, float]]:
    """{"ttft", "tpot", "itl", "e2e"}: percentiles over the requests that ended well (stop or length)."""
    ended = [record for record in records if record.finish in ("stop", "length")]
    return {
        "ttft": percentiles([t for r in ended if (t := ttft_s(r)) is not None], points),
        "tpot": percentiles([t for r in ended if (t := tpot_s(r)) is not None], points),
        "itl": percentiles([gap for r in ended for gap in itl_s(r)], points),
        "e2e": percentiles([e2e_s(r) for r in ended], points),
    }
