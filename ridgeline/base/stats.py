"""Percentiles, the latencies of requests by their standard names, and Little's law. Seconds throughout."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
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


def ttft_parts(record: RequestRecord) -> dict[str, float]:
    """What TTFT is made of, in the order of a request's way; sums to `ttft_s`. Empty without a first token.

    tokenise: until its tokens were with the engine. queue: until a plan took it, by `waits_s` for what.
    schedule: until the device began that plan. prefill: from there on, other requests' chunks in between and
    what a preemption cost included.
    """
    if record.first_token_s is None or record.first_scheduled_s is None:
        return {}
    tokenised_s = record.arrived_s if record.tokenised_s is None else record.tokenised_s
    started_s = record.first_scheduled_s if record.first_started_s is None else record.first_started_s
    return {
        "tokenise": tokenised_s - record.arrived_s,
        "preprocess": record.preprocess_s,
        "queue": record.first_scheduled_s - tokenised_s - record.preprocess_s,
        "schedule": started_s - record.first_scheduled_s,
        "encoder": record.encoder_s,
        "prefill": record.first_token_s - started_s - record.encoder_s - record.transfer_s,
        "transfer": record.transfer_s,
    }


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


class LittleLaw:
    """Number in the system = arrival rate times time in the system, each measured for itself: arrivals are
    counted, each one's time is taken from its own arrival to its own end, and the number inside is whatever
    somebody else counts, averaged over time.

    In a window that begins empty the law is exact, not only in the long run, when the time of an arrival is
    what it spent inside so far (J. D. C. Little, Little's Law as Viewed on Its 50th Anniversary, Operations
    Research 59, 2011). So a difference means that somebody is counted wrong, never that the load changes.
    """

    def __init__(self, started_s: float) -> None:
        self._started_s = self._number_since_s = started_s
        self._inside: dict[Hashable, float] = {}
        self._num_arrived = 0
        self._spent_s = self._number_s = 0.0
        self._number = 0

    def arrive(self, key: Hashable, now: float) -> None:
        """One more came. key: no other's that is inside."""
        assert key not in self._inside, f"{key!r} is inside already"
        self._inside[key] = now
        self._num_arrived += 1

    def leave(self, key: Hashable, now: float) -> None:
        """The one with this key left; a key that never arrived passes."""
        came_s = self._inside.pop(key, None)
        if came_s is not None:
            self._spent_s += now - came_s

    def number(self, count: int, now: float) -> None:
        """So many are inside from now on, told at each change by a count of its own."""
        self._number_s += self._number * (now - self._number_since_s)
        self._number, self._number_since_s = count, now

    def report(self, now: float, inside_s: float | None = None) -> Mapping[str, float]:
        """{"window_s", "arrival_rate", "time_in_system_s", "num_in_system", "difference"}.

        inside_s: the number's integral over time, where others have counted it and number() was not told.
        difference: by which share the mean number differs from rate times time; 0 before anybody came.
        """
        window_s = max(now - self._started_s, 1e-9)
        spent_s = self._spent_s + len(self._inside) * now - sum(self._inside.values())
        rate, time_s = self._num_arrived / window_s, spent_s / max(self._num_arrived, 1)
        if inside_s is None:
            inside_s = self._number_s + self._number * (now - self._number_since_s)
        number = inside_s / window_s
        expected = rate * time_s
        return {"window_s": window_s, "arrival_rate": rate, "time_in_system_s": time_s,
                "num_in_system": number, "difference": number / expected - 1 if expected else 0.0}
