"""What the live page shows, as plain numbers: the last minute, the time since the start, and a curve of both.

Hears of every choice that ended and of the engine's gauges once a second. Counts as good what met the
targets; knows no page.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.account.clocks import ChoiceTimes, RequestClock
from ridgeline.base.clock import Clock
from ridgeline.base.stats import percentiles
from ridgeline.schedule.targets import NO_TARGETS, Targets

WINDOW_S = 60.0
SAMPLE_S, MOST_SAMPLES = 1.0, 600
MOST_ENDED = 20_000  # of the window
POINTS = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    at_s: float
    ttft_s: float | None
    tpot_s: float | None
    parts_s: Mapping[str, float]
    good: bool


class Live:
    """Choices that ended, and samples of the engine. targets: what counts towards goodput; without any, what
    ended well does."""

    def __init__(self, clock: Clock, targets: Targets = NO_TARGETS) -> None:
        self.targets = targets
        self._clock = clock
        self._started_s = clock.now()
        self._ended: deque[_Ended] = deque(maxlen=MOST_ENDED)
        self._num_ended = self._num_good = 0
        self._samples: deque[dict[str, Any]] = deque(maxlen=MOST_SAMPLES)
        self._stats: Mapping[str, Any] = {}

    def ended(self, request: RequestClock, choice: ChoiceTimes) -> None:
        """A choice has ended; one that its caller gave up, or that was refused, is not good."""
        well = choice.finish in ("stop", "length")
        good = well and self.targets.met(choice.ttft_s, choice.tpot_s)
        self._num_ended += 1
        self._num_good += good
        self._ended.append(_Ended(at_s=self._clock.now(), ttft_s=choice.ttft_s, tpot_s=choice.tpot_s,
                                  parts_s=choice.parts_s, good=good))  # fmt: skip

    def sample(self, stats: Mapping[str, Any]) -> None:
        """The engine's newest numbers; kept once a second. Those of an engine before are forgotten."""
        now = self._clock.now()
        if self._stats and stats["uptime_s"] < self._stats["uptime_s"]:
            self._samples.clear()
        self._stats = stats
        if self._samples and now - self._samples[-1]["at_s"] < SAMPLE_S:
            return
        before = self._samples[-1]["stats"] if self._samples else None
        self._samples.append({
            "at_s": now, "stats": stats, **_device(stats, before),
            **{f"{name}_{point}_s": found.get(point)
               for name, found in _latency(self._recent(now)).items()
               for point in ("p50", "p99")},
            "goodput": self.goodput()["minute"],
        })  # fmt: skip

    def goodput(self) -> dict[str, float]:
        """{"minute", "start"}: choices within the targets a second, of the last minute and of all."""
        now = self._clock.now()
        recent, up_s = self._recent(now), max(now - self._started_s, 1e-9)
        past_s = now - recent[0].at_s if len(recent) == MOST_ENDED else min(WINDOW_S, up_s)
        good = sum(ended.good for ended in recent)
        return {"minute": good / max(past_s, 1e-9), "start": self._num_good / up_s}

    def data(self) -> dict[str, Any]:
        """All of it, JSON-able. Shares are of time, 0 to 1; `device` is the last minute's."""
        now, stats, recent = self._clock.now(), self._stats, self._recent(self._clock.now())
        began = next((one for one in self._samples if one["at_s"] >= now - WINDOW_S), None)
        return {
            "uptime_s": now - self._started_s, "window_s": WINDOW_S,
            "targets": {"ttft_s": self.targets.ttft_s, "tpot_s": self.targets.tpot_s},
            "goodput": {**self.goodput(), "ended": len(recent), "good": sum(one.good for one in recent)},
            "latency": _latency(recent), "ttft_parts_s": _mean_parts(recent),
            **(_engine(stats, began) if stats else {}),
            "device": _device(stats, began["stats"] if began else None),
            "series": self._series(now),
        }  # fmt: skip

    def _recent(self, now: float) -> list[_Ended]:
        while self._ended and self._ended[0].at_s < now - WINDOW_S:
            self._ended.popleft()
        return list(self._ended)

    def _series(self, now: float) -> dict[str, list[float | None]]:
        """Curves over the samples; at_s: seconds from now, negative."""
        names = [name for one in list(self._samples)[:1] for name in one if name not in ("at_s", "stats")]
        curves: dict[str, list[float | None]] = {"at_s": [one["at_s"] - now for one in self._samples]}
        curves |= {name: [one[name] for one in self._samples] for name in names}
        for name in ("num_running", "num_waiting"):
            curves[name] = [one["stats"][name] for one in self._samples]
        for state in ("used", "cached", "pending"):
            curves[f"kv_{state}"] = [_blocks(one["stats"])[state] for one in self._samples]
        return curves


def _latency(recent: Iterable[_Ended]) -> dict[str, dict[str, float]]:
    return {"ttft": percentiles((one.ttft_s for one in recent if one.ttft_s is not None), POINTS),
            "tpot": percentiles((one.tpot_s for one in recent if one.tpot_s is not None), POINTS)}


def _device(stats: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, float | None]:
    """What the device did between two samples: shares of the time, a step's mean and its floor. None for what
    is not known."""
    names = ("prefill_share", "decode_share", "idle_share", "step_mean_s", "step_floor_s")
    if before is None or not stats or stats["uptime_s"] <= before["uptime_s"]:
        return dict.fromkeys(names)
    past_s, steps, busy_s, floor_s, prefill_s = (
        stats[name] - before[name]
        for name in ("uptime_s", "num_steps", "step_measured_s", "step_floor_s", "step_prefill_s")
    )
    past_s = max(past_s, busy_s)  # a step counts when it ends
    means = (busy_s / steps, floor_s / steps) if steps else (None, None)
    shares = (prefill_s / past_s, (busy_s - prefill_s) / past_s, 1 - busy_s / past_s)
    return dict(zip(names, (*shares, *means), strict=True))


def _engine(stats: Mapping[str, Any], began: Mapping[str, Any] | None) -> dict[str, Any]:
    """Gauges of now, and what the last minute added to counters."""
    old = began["stats"] if began else stats

    def added(name: str) -> float:
        return stats[name] - old[name]

    waits = [{"reason": reason, "waiting": waiting,
              "waited_s": max(0.0, stats["waited_s"][reason] - old["waited_s"][reason])}
             for reason, waiting in stats["waiting"].items()]  # fmt: skip
    return {
        "running": stats["num_running"], "waiting": stats["num_waiting"],
        "waits": sorted(waits, key=lambda wait: (-wait["waited_s"], -wait["waiting"])),
        "kv": _blocks(stats), "little_law": stats["little_law"],
        "output_tok_s": added("num_generated_tokens") / max(1.0, added("uptime_s")),
        "prompt_tokens": added("num_prompt_tokens"), "cached_tokens": added("num_cached_tokens"),
        "preemptions": added("num_preemptions"),
        "late": sum(stats.get("num_late", {}).values()) - sum(old.get("num_late", {}).values()),
        "wasted_tokens": added("num_recomputed_tokens") + added("num_surplus_tokens"),
    }  # fmt: skip


def _blocks(stats: Mapping[str, Any]) -> dict[str, int]:
    """Blocks of the KV cache by state; free ones hold nothing, cached ones a prefix that nobody uses now."""
    used, cached, pending = stats["num_used_pages"], stats["num_cached_pages"], stats["num_pending_pages"]
    return {"used": used, "cached": cached, "pending": pending, "free": stats["num_free_pages"] - cached}


def _mean_parts(recent: Iterable[_Ended]) -> dict[str, float]:
    """The mean of each part of TTFT."""
    known = [one.parts_s for one in recent if one.parts_s]
    return {part: sum(parts[part] for parts in known) / len(known) for part in known[0]} if known else {}
