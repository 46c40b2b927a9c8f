"""What came of a simulated workload: the numbers that are compared, and the meter that collects them.

Latencies are seconds by their standard names (`base.stats`); counts are of requests and tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.base.stats import POINTS, e2e_s, tpot_s, ttft_parts, ttft_s
from ridgeline.base.trace import Record, RequestRecord, StepRecord
from ridgeline.schedule.course import Leap
from ridgeline.schedule.targets import NO_TARGETS, Targets

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request's record. times_s: when it got its tokens."""

    record: RequestRecord

    @property
    def times_s(self) -> Seconds:
        return np.asarray(self.record.token_times_s)

    @property
    def complete(self) -> bool:
        """It got all its tokens."""
        return self.record.finish in ("stop", "length")

    def good(self, targets: Targets) -> bool:
        return self.complete and targets.met(ttft_s(self.record), tpot_s(self.record))

    def unwanted_tokens(self, targets: Targets) -> int:
        """Tokens that nobody waited for any more: all of a client that went away, and what came behind its
        deadline, which for the i-th token is TTFT + i TPOT after arrival."""
        if not self.complete:
            return self.record.num_output
        if self.good(targets) or targets.ttft_s is None or not self.record.num_output:
            return 0
        times_s, due_s = self.times_s, self.record.arrived_s + targets.ttft_s
        if targets.tpot_s is None:
            return len(times_s) if times_s[0] > due_s else 0
        return int(np.count_nonzero(times_s > due_s + np.arange(len(times_s)) * targets.tpot_s))


class Meter:
    """Takes the records of one engine's steps and requests. `steps` are summed, not kept.

    batch_holds: rows stay taken until their batch has ended (static batching), whoever is done before.
    """

    def __init__(self, num_pages: int, *, batch_holds: bool = False) -> None:
        self.ended: list[Ended] = []
        self.num_steps = self.num_preemptions = 0
        self.busy_s = self.prefill_s = self.page_s = self.resident_s = self.row_s = 0.0
        self.most_pages = self.most_residents = 0
        self.num_rows = self.num_held = 0  # slot-steps: those that took part, and those that were taken
        self._num_pages = num_pages - 1
        self._batch_holds = batch_holds
        self._running = self._held = 0

    @property
    def occupancy(self) -> dict[str, float]:
        """Share of the cache's pages that requests hold: its mean while the engine works, and its most."""
        mean = self.page_s / self.busy_s if self.busy_s else 0.0
        return {"mean": mean / self._num_pages, "max": self.most_pages / self._num_pages}

    @property
    def residents(self) -> dict[str, float]:
        """Requests that hold memory and a row: their mean number while the engine works, and the most."""
        return {"mean": self.resident_s / self.busy_s if self.busy_s else 0.0, "max": self.most_residents}

    def add(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._step(record)
        else:
            self.ended.append(Ended(record=record))

    def _step(self, record: StepRecord) -> None:
        self.num_steps += 1
        self.num_preemptions += record.num_preemptions
        self.busy_s += record.measured_s
        self.prefill_s += record.prefill_share * record.measured_s
        self.page_s += record.used_pages * record.measured_s
        self.most_pages = max(self.most_pages, record.used_pages)
        self.resident_s += record.running * record.measured_s
        self.most_residents = max(self.most_residents, record.running)
        self.num_rows += record.num_decodes + record.num_chunks
        self.row_s += (record.num_decodes + record.num_chunks) * record.measured_s
        self.num_held += self._hold(record.running)

    def leapt(self, leap: Leap) -> None:
        """Steps without a record each."""
        took_s = leap.finished_s - leap.started_s
        self.num_steps += leap.num_steps
        self.num_preemptions += leap.num_preemptions
        self.busy_s += float(np.add.reduce(took_s))
        self.prefill_s += float(took_s @ leap.prefill_share)
        self.page_s += float(took_s @ leap.used_pages)
        self.most_pages = max(self.most_pages, int(np.maximum.reduce(leap.used_pages)))
        self.resident_s += float(took_s @ leap.running)
        self.most_residents = max(self.most_residents, int(np.maximum.reduce(leap.running)))
        self.num_rows += int(np.add.reduce(leap.num_rows))
        self.row_s += float(took_s @ leap.num_rows)
        self.num_held += sum(map(self._hold, leap.running.tolist())) if self._batch_holds else int(
            np.add.reduce(leap.running))

    def _hold(self, running: int) -> int:
        """Slots that are taken in a step after whose plan so many requests run."""
        if not self._batch_holds or running > self._running:
            self._held = running
        self._running = running
        return self._held

    def close(self) -> None:
        """Nothing to do: the sums stay readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy's numbers.

    num_good: complete and within the targets; num_refused: could never run; num_lost: their client went away.
    duration_s: from the first arrival to the last end. slot_utilisation: of the slots that requests hold, by
    steps, those that take part. prefill_share: of the time of steps, that for prompts.
    wasted_tokens: computed again, or past an end; unwanted_tokens: nobody waited for them any more.
    host: what went to host memory and back (`sim.node.host_traffic`), {} without any.
    ttft_parts: the mean of each part of TTFT, seconds. little_law: `base.stats.LittleLaw`'s report of all
    engines together.
    """

    policy: str
    num_offered: int
    num_finished: int
    num_good: int
    num_refused: int
    num_lost: int
    duration_s: float
    goodput: float
    output_tok_s: float
    slot_utilisation: float
    busy_share: float
    prefill_share: float
    latencies: Mapping[str, Mapping[str, float]]
    num_steps: int
    preemptions: int
    wasted_tokens: int
    unwanted_tokens: int
    kv_occupancy: Mapping[str, float]
    residents: Mapping[str, float]
    host: Mapping[str, float]
    ttft_parts: Mapping[str, float]
    little_law: Mapping[str, float] = field(compare=False)  # a cluster's is added up in another order
    num_devices: int
    cost: Mapping[str, float | None]

    @property
    def attainment(self) -> float:
        """Share of what was offered that met its targets."""
        return self.num_good / self.num_offered

    @property
    def goodput_per_device(self) -> float:
        return self.goodput / self.num_devices

    @property
    def good_per_usd(self) -> float | None:
        """Requests within their targets that a dollar buys."""
        each = self.cost["usd_per_thousand_good"]
        return 1e3 / each if each else None

    def as_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "latencies"}
        return {**fields, **{name: dict(spread) for name, spread in self.latencies.items()},
                "goodput_per_device": self.goodput_per_device, "good_per_usd": self.good_per_usd,
                "attainment": self.attainment, "kv_occupancy": dict(self.kv_occupancy),
                "residents": dict(self.residents), "host": dict(self.host),
                "ttft_parts": dict(self.ttft_parts), "little_law": dict(self.little_law),
                "cost": dict(self.cost)}


def outcome_of(policy: str, meters: Sequence[Meter], *, num_offered: int, num_refused: int, targets: Targets,
               num_devices: int, usd_per_hour: float | None, host: Mapping[str, float],
               little_law: Mapping[str, float] | None = None) -> Outcome:
    """The numbers of one engine or of several beside one another. usd_per_hour: of all devices."""
    ended = [one for meter in meters for one in meter.ended]
    complete = [one for one in ended if one.complete]
    good = sum(one.good(targets) for one in complete)
    begin = min((one.record.arrived_s for one in ended), default=0.0)
    duration_s = max((one.record.finished_s for one in ended), default=0.0) - begin
    tokens, busy_s = sum(one.record.num_output for one in complete), sum(meter.busy_s for meter in meters)
    held = sum(meter.num_held for meter in meters)
    return Outcome(
        policy=policy, num_offered=num_offered, num_finished=len(complete), num_good=good,
        num_refused=num_refused, num_lost=len(ended) - len(complete), duration_s=duration_s,
        goodput=_ratio(good, duration_s), output_tok_s=_ratio(tokens, duration_s),
        slot_utilisation=_ratio(sum(meter.num_rows for meter in meters), held),
        busy_share=_ratio(busy_s, duration_s * len(meters)),
        prefill_share=_ratio(sum(meter.prefill_s for meter in meters), busy_s),
        latencies=latencies_of(complete), num_steps=sum(meter.num_steps for meter in meters),
        preemptions=sum(one.record.num_preemptions for one in ended),
        wasted_tokens=sum(one.record.wasted_tokens for one in ended),
        unwanted_tokens=0 if targets is NO_TARGETS else sum(one.unwanted_tokens(targets) for one in ended),
        residents={name: sum(meter.residents[name] for meter in meters) for name in ("mean", "max")},
        kv_occupancy={name: sum(meter.occupancy[name] for meter in meters) / len(meters)
                      for name in ("mean", "max")},
        ttft_parts=_mean_parts(complete), little_law=little_law or {}, host=host,
        num_devices=num_devices, cost=_cost(usd_per_hour, duration_s, tokens, good))


def _mean_parts(ended: Sequence[Ended]) -> dict[str, float]:
    """Those that took any time."""
    found = [ttft_parts(one.record) for one in ended]
    means = {part: sum(parts[part] for parts in found) / len(found) for part in (found[0] if found else ())}
    return {part: mean_s for part, mean_s in means.items() if mean_s}


def _cost(usd_per_hour: float | None, duration_s: float, tokens: int, good: int) -> dict[str, float | None]:
    spent = None if usd_per_hour is None else usd_per_hour * duration_s / 3600
    return {"usd_per_hour": usd_per_hour,
            "usd_per_million_output_tokens": spent / tokens * 1e6 if spent is not None and tokens else None,
            "usd_per_thousand_good": spent / good * 1e3 if spent is not None and good else None}


def latencies_of(ended: Iterable[Ended]) -> dict[str, dict[str, float]]:
    """{"ttft", "tpot", "itl", "e2e"}: percentiles of requests that got all their tokens; empty for none."""
    found = list(ended)
    gaps = [times_s[1:] - times_s[:-1] for times_s in (one.times_s for one in found)]
    return {
        "ttft": spread([t for one in found if (t := ttft_s(one.record)) is not None]),
        "tpot": spread([t for one in found if (t := tpot_s(one.record)) is not None]),
        "itl": spread(np.concatenate(gaps) if gaps else []),
        "e2e": spread([e2e_s(one.record) for one in found]),
    }


def spread(values: Sequence[float] | Seconds, points: Sequence[float] = POINTS) -> dict[str, float]:
    """`base.stats.percentiles` of very many values, and the largest."""
    if not len(values):
        return {}
    found = np.percentile(values, points)
    return {f"p{point:g}": float(value) for point, value in zip(points, found, strict=True)} | {
        "max": float(np.max(values))}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
