"""Fits efficiency factors to measured times. Every factor keeps to a physical range and is drawn towards what
is known of it, so that what the points do not tell apart stays where it was: a fit must hold on models and
devices that it has not seen. Legend: N points, F factors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.efficiency import FITTED, Calibration, Efficiency, Levels, Waking
from ridgeline.ledger.served import Load, served
from ridgeline.ledger.work import Work, stack

Array = NDArray[np.float64]

SKEWS = (0.0, 0.4, 0.8, 1.2)  # of routing, at which experts are counted; between them lines are drawn
_NONE: Mapping[str, float] = MappingProxyType({})
_LATEST_S = 1.0
_CAP = 0.5  # of |log(estimate / measured)|: a point that is further off says nothing about how much
_ROUNDS, _TRIES = 40, 6
_NUDGE, _NEAR, _ENOUGH = 1e-3, 0.01, 2e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Where a factor can lie, what it is drawn towards, and how far from it (as a ratio's logarithm) costs as
    much as points do."""

    low: float
    likely: float
    high: float
    spread: float


def _range(likely: float, low: float, high: float, spread: float) -> Range:
    return Range(low=low, likely=likely, high=high, spread=spread)


# Shares of bandwidth and peak: GPU kernels in public microbenchmarks reach 80-95 % of bandwidth on large
# reads and 50-75 % of peak in large products, less on small ones. Launches inside a graph take 1-10 us a
# kernel, a framework's own some ten times that; small all-reduces 5-30 us, and 8 devices' rings up to 30 us
# more. A grouped product's tiles take 0.1-1 us an expert to begin. Skew: routers' choices follow Zipf
# exponents from 0 to about 1.2.
RANGES: Mapping[str, Range] = MappingProxyType({
    "bandwidth": _range(0.80, 0.5, 1.0, 0.15), "experts": _range(0.80, 0.4, 1.0, 0.15),
    "cache": _range(0.60, 0.25, 1.0, 0.25), "prefill": _range(0.50, 0.2, 0.9, 0.3),
    "experts_prefill": _range(0.30, 0.05, 0.9, 0.4), "attention": _range(0.40, 0.1, 0.9, 0.4),
    "step_s": _range(1e-3, 1e-4, 6e-3, 0.6), "row_s": _range(5e-6, 2e-7, 6e-5, 0.7),
    "launch_s": _range(4e-6, 5e-7, 2e-5, 0.5), "packed_s": _range(2e-6, 2e-7, 1e-5, 0.5),
    "blocked_s": _range(3e-6, 2e-7, 1.5e-5, 0.5), "expert_s": _range(1.5e-5, 1e-6, 8e-5, 0.5),
    "each_s": _range(5e-7, 2e-8, 3e-6, 0.7), "eager_s": _range(5e-5, 1e-6, 3e-4, 0.7),
    "collective_s": _range(1e-5, 2e-6, 3e-5, 0.4), "hop_s": _range(2e-6, 3e-7, 5e-6, 0.5),
    "link": _range(0.7, 0.3, 1.0, 0.2), "stream": _range(7.5, 2.0, 30.0, 0.4),
    "skew": _range(0.6, 0.05, 1.15, 0.4), "narrow": _range(0.85, 0.6, 1.0, 0.15),
    "unpack": _range(0.8, 0.5, 1.0, 0.15), "mix": _range(0.8, 0.5, 1.0, 0.25)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured configuration. decode, prompt: its work at each of SKEWS (one alone: no routers). seconds:
    measured TPOT; first_s: measured TTFT, if any. about: points of the same share a weight, as one set-up
    measured often is one witness."""

    decode: tuple[Work, ...]
    prompt: tuple[Work, ...]
    users: float
    output: float
    seconds: float
    first_s: float = float("nan")
    waves: bool = False
    burst_steps: float = 0.0
    about: str = ""

    @staticmethod
    def of_step(work: Work, seconds: float, about: str = "") -> "Point":
        """A bare step without prompts beside it."""
        return Point(decode=(work,), prompt=(work,), users=1.0, output=1e15, seconds=seconds, about=about)


class Points:
    """N points, stacked once."""

    def __init__(self, points: Sequence[Point]) -> None:
        if not points:
            raise ConfigError("a calibration needs measured points: there are none")
        self._decode = [stack([p.decode[min(i, len(p.decode) - 1)] for p in points])
                        for i in range(len(SKEWS))]
        self._prompt = stack([p.prompt[-1] for p in points])
        self._load = Load(users=np.array([p.users for p in points]),
                          output=np.array([p.output for p in points]),
                          waves=np.array([p.waves for p in points]),
                          burst_steps=np.array([p.burst_steps for p in points]))
        self.seconds_N = np.array([p.seconds for p in points])
        self.first_N = np.array([p.first_s for p in points])
        _, which, counts = np.unique([p.about for p in points], return_inverse=True, return_counts=True)
        self.weight_N = 1 / np.sqrt(counts[which])

    @property
    def witnesses(self) -> float:
        """How many there are, points of the same set-up counted as the root of their number."""
        return float(self.weight_N.sum())

    def served(self, eff: Efficiency) -> tuple[Array, Array]:
        """Estimated (TPOT, TTFT) of each point."""
        place = min(eff.skew / (SKEWS[1] - SKEWS[0]), len(SKEWS) - 1.001)
        i, part = int(place), place % 1
        low, high = self._decode[i], self._decode[i + 1]
        decode = replace(low, memory_L=low.memory_L * (1 - part) + high.memory_L * part,
                         count_C=low.count_C * (1 - part) + high.count_C * part)
        return served(decode, self._prompt, self._load, eff)

    def errors(self, eff: Efficiency) -> Array:
        """Relative error of TPOT by point."""
        error_N: Array = self.served(eff)[0] / self.seconds_N - 1
        return error_N


def likely(ranges: Mapping[str, Range] = RANGES) -> Efficiency:
    """Every factor where it is drawn to."""
    return Efficiency().having({name: one.likely for name, one in ranges.items()})


def fit(points: Points, start: Efficiency | None = None, *, pull: float = 0.05,
        ranges: Mapping[str, Range] = RANGES, cap: float = _CAP) -> Efficiency:
    """The factors of `ranges` that bring the estimates nearest to the points: in
    logarithms, the least weighted mean |log(estimate / measured)| plus pull times the mean squared distance
    from `start` in spreads. What is not in `ranges` stays as in start. band: where nine tenths of errors
    lie."""
    begin = start or likely(ranges)
    names = list(ranges)
    low_F, high_F, spread_F = (np.array(x) for x in zip(*(
        (np.log(r.low), np.log(r.high), r.spread) for r in ranges.values()), strict=True))
    origin_F = np.clip(np.log([getattr(begin, name) for name in names]), low_F, high_F)
    share_N = points.weight_N / points.weight_N.sum()

    def made(value_F: Array) -> Efficiency:
        return begin.having(dict(zip(names, np.exp(value_F).tolist(), strict=True)))

    def off(value_F: Array) -> Array:
        return np.log1p(points.errors(made(value_F)))

    def cost(value_F: Array, off_N: Array) -> float:
        far_F = (value_F - origin_F) / spread_F
        return float(share_N @ np.minimum(abs(off_N), cap) + pull * np.mean(far_F**2))

    value_F = _descend(off, cost, origin_F, share_N, pull / len(names) / spread_F**2, (low_F, high_F), cap)
    found = made(value_F)
    late_N = points.first_N - points.served(replace(found, first_s=0.0))[1]
    if np.isfinite(late_N).any():
        found = replace(found, first_s=float(np.clip(np.nanmedian(late_N), 0.0, _LATEST_S)))
        names = [*names, "first_s"]
    low, high = (float(x) for x in np.quantile(points.errors(found), (0.05, 0.95)))
    return replace(found, band=(low, high), sources={**begin.sources, **dict.fromkeys(names, FITTED)})


def _descend(off: Callable[[Array], Array], cost: Callable[[Array, Array], float], origin_F: Array,
             share_N: Array, pull_F: Array, ends_2F: tuple[Array, Array], cap: float) -> Array:
    """Least absolute deviations by reweighted least squares with damped steps, clipped to the ranges."""
    value_F, off_N, damping = origin_F, off(origin_F), 1e-2
    best = cost(value_F, off_N)
    for _ in range(_ROUNDS):
        slope_NF = np.stack([(off(value_F + h) - off_N) / _NUDGE for h in np.eye(len(value_F)) * _NUDGE], 1)
        near_N = share_N * (abs(off_N) < cap) / np.maximum(abs(off_N), _NEAR)
        normal_FF = (slope_NF * near_N[:, None]).T @ slope_NF + np.diag(2 * pull_F)
        down_F = -(slope_NF.T @ (near_N * off_N)) - 2 * pull_F * (value_F - origin_F)
        before = best
        for _ in range(_TRIES):
            step_F = np.linalg.solve(normal_FF + damping * np.diag(np.diag(normal_FF) + 1e-9), down_F)
            tried_F = np.clip(value_F + step_F, *ends_2F)
            tried_N = off(tried_F)
            if (now := cost(tried_F, tried_N)) < best:
                value_F, off_N, best, damping = tried_F, tried_N, now, damping / 5
                break
            damping *= 5
        if before - best < _ENOUGH:
            break
    return value_F


# A machine of one's own: its rates are measured in the same run, so that shares are of what it gives;
# processors take tens of microseconds an operation where a graph takes one. A kernel may read a little faster
# than the probe did.
OWN_RANGES: Mapping[str, Range] = MappingProxyType({
    "bandwidth": _range(0.85, 0.1, 1.05, 0.5), "cache": _range(0.6, 0.05, 1.05, 1.0),
    "prefill": _range(0.6, 0.03, 1.0, 1.0), "attention": _range(0.4, 0.02, 1.0, 1.0),
    "launch_s": _range(3e-6, 1e-7, 1e-3, 1.5), "step_s": _range(5e-5, 1e-6, 2e-2, 1.5)})
# Pulls: of all steps together towards OWN_RANGES, of a level's towards all. A level has fewer steps than
# factors: with less its factors follow the noise of its steps, with more they miss them by some per cent.
_ALL, _LEVEL = 1e-3, 1e-2


Measured = Mapping[int, Sequence[Point]]  # bare steps (`Point.of_step`) by their tokens


def calibrate_steps(decodes: Measured, prompts: Measured, woken: Sequence[tuple[float, float]] = (),
                    measured: Mapping[str, float] = _NONE) -> Calibration:
    """Factors from steps of decodes alone and from steps with prompts. woken: seconds of a step in a row of
    others, and after a pause."""
    found = _levels(decodes), _levels(prompts)
    error_N = np.abs(np.concatenate([error_N for _, errors in found for error_N in errors]))
    return Calibration(decodes=found[0][0], prompts=found[1][0], waking=waking(woken),
                       num_points=len(error_N), error=float(np.median(error_N)), measured=dict(measured))


def _levels(steps: Measured) -> tuple[Levels, list[Array]]:
    """Factors by tokens, and the errors that are left. Each level has steps of a few models and contexts: its
    own factors are drawn towards those of all levels together."""
    every = Points([point for level in steps.values() for point in level])
    common = fit(every, likely(OWN_RANGES), pull=_ALL, ranges=OWN_RANGES, cap=np.inf)
    levels = {tokens: Points(points) for tokens, points in sorted(steps.items())}
    found = {tokens: fit(points, common, pull=_LEVEL, ranges=OWN_RANGES, cap=np.inf)
             for tokens, points in levels.items()}
    return (Levels(tokens=tuple(found), factors=tuple(found.values())),
            [levels[tokens].errors(eff) for tokens, eff in found.items()])


def waking(woken: Sequence[tuple[float, float]]) -> Waking:
    """What (seconds in a row of others, seconds after a pause) say: of all that go through two of them, the
    one with the least sum of |log(estimate / measured)|. Nothing without any."""
    more = [(max(after / busy - 1, 0.0), max(after - busy, 0.0)) for busy, after in woken]
    tried = [Waking(share=share, most_s=most_s) for share, _ in more for _, most_s in more]

    def off(one: Waking) -> float:
        return sum(abs(np.log((busy + one(busy)) / after)) for busy, after in woken)

    return min(tried, key=off, default=Waking())
