"""Whether two runs of the same requests said the same: texts token by token, distributions place by place.

A near tie: where two greedy texts first differ, the two tokens lie close together in both runs. If more than
MOST_EXCUSED of the places are, it is no chance any more, and fails.
Legend: P positions, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.plan import RowLogprobs

MOST_EXCUSED = 0.02
OK, FAIL, NOT_RUN = "ok", "FAIL", "not run"
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """In nats. near: of two tokens that tie. largest: by which a token's log-probability may differ."""

    near: float
    largest: float


EXACT = Bounds(near=0.0, largest=0.0)
SAME_NUMBERS = Bounds(near=1e-3, largest=1e-2)  # one format, sums in another order
ROUNDED = Bounds(near=3e-2, largest=0.25)  # products in bfloat16 on one path and not on the other


@dataclass(slots=True, kw_only=True)
class Said:
    """One request's answer. logprobs: of each token, the best few behind it."""

    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[RowLogprobs] = field(default_factory=list)
    scores: list[RowLogprobs] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the table. largest_nat: difference of a log-probability; near_ties: of `positions`. note:
    why it was not run, or the first difference. kl_nat, top1: mean divergence and share of equal best tokens.
    """

    what: str
    verdict: str
    positions: int = 0
    largest_nat: float = 0.0
    near_ties: int = 0
    note: str = ""
    kl_nat: float | None = None
    top1: float | None = None


def not_run(what: str, why: str) -> Finding:
    return Finding(what=what, verdict=NOT_RUN, note=why)


def compare_texts(what: str, first: Sequence[Said], second: Sequence[Said], bounds: Bounds) -> Finding:
    """Greedy answers to the same prompts, each up to where it first differs."""
    positions, largest, ties, note = 0, 0.0, 0, ""
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        for place, (a, b) in enumerate(zip(one.logprobs, other.logprobs, strict=False)):
            positions += 1
            pair = int(a.token_ids[0]), int(b.token_ids[0])
            if pair[0] == pair[1]:
                gap = abs(float(a.logprobs[0]) - float(b.logprobs[0]))
                largest = max(largest, gap if np.isfinite(gap) else np.inf)
                continue
            if all(_gap(found, pair) <= bounds.near for found in (a, b)) and bounds.near:
                ties += 1
            else:
                note = note or f"answer {number + 1} says {pair[1]} for {pair[0]} at token {place + 1}"
            break
        else:
            if len(one.tokens) != len(other.tokens):
                note = note or f"answer {number + 1} has {len(other.tokens)} tokens for {len(one.tokens)}"
    if not note and largest > bounds.largest:
        note = f"a log-probability is {largest:.3g} nat off"
    if not note and ties > MOST_EXCUSED * positions:
        note = f"{ties} near ties are more than {MOST_EXCUSED:.0%}"
    return Finding(what=what, verdict=FAIL if note or not positions else OK, positions=positions,
                   largest_nat=largest, near_ties=ties, note=note)


def _gap(found: RowLogprobs, pair: tuple[int, int]) -> float:
    """Between the scores of two tokens; infinite where one is not among the best."""
    ids = found.token_ids.tolist()
    scores = [float(found.logprobs[ids.index(token)]) if token in ids else -np.inf for token in pair]
    return abs(scores[0] - scores[1]) if np.isfinite(scores).all() else np.inf


def distributions(said: Sequence[Said], vocab_size: int) -> Floats:
    """Log-probabilities [P, V] at the prompts' places, of requests that asked for all of them."""
    rows = [one for answer in said for one in answer.scores]
    found_PV = np.full((len(rows), vocab_size), -np.inf, np.float32)
    for place, one in enumerate(rows):
        found_PV[place, one.token_ids] = one.logprobs
    return found_PV


def compare_distributions(what: str, full_PV: Floats, other_PV: Floats, *, near_nat: float, kl_nat: float,
                          top1: float) -> Finding:
    """other against full: KL(full || other), the share of places with the same best token, and near ties:
    those where it is another within near_nat. kl_nat, top1: the mean and the share that pass."""
    probability_PV = np.exp(full_PV)
    gap_PV = np.where(probability_PV > 0.0, full_PV - other_PV, 0.0)
    kl_P = (probability_PV * gap_PV).sum(1, dtype=np.float64)
    best, others = full_PV.argmax(1), other_PV.argmax(1)
    places = np.arange(len(best))
    apart = np.flatnonzero(best != others)
    near = [place for place in apart.tolist()
            if full_PV[place, best[place]] - full_PV[place, others[place]] <= near_nat
            and other_PV[place, others[place]] - other_PV[place, best[place]] <= near_nat]
    share, mean = 1.0 - (len(apart) - len(near)) / max(1, len(best)), float(kl_P.mean())
    good = bool(np.isfinite(mean)) and mean <= kl_nat and share >= top1
    return Finding(
        what=what, verdict=OK if good else FAIL, positions=len(best), near_ties=len(near),
        largest_nat=float(np.abs(gap_PV[places, best]).max()), kl_nat=mean, top1=share,
        note="" if good else f"allowed are KL {kl_nat:g} nat and {top1:.0%} equal best tokens")
