"""The time of steps on a layout of devices: floors, and estimates beside them, never mixed.

A stage's time is the sum over its lines of max(bytes / bandwidth, FLOPs / rate) and of its collectives.
Stages work on different sequences at the same time. Legend: L lines, C collectives, S sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.account import Line
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.layout import Layout, Stage
from ridgeline.ledger.sums import Rows, Summer
from ridgeline.ledger.work import COUNTED, Product, StageLines, reached
from ridgeline.spec.cost import CONTEXT, DISTINCT, FEW_KEYS, ONE, PROJECTS, ROWS, TOKENS
from ridgeline.spec.hardware import HardwareSpec

T = TypeVar("T")

UNPACK_TILE = 256  # rows for which a kernel unpacks a weight once
_UNPACK_OPS = 2.0  # a weight: take its zero point away, multiply by its scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A device's arithmetic for a model's numeric path, FLOP/s. packed: of products with packed matrices;
    plain: of all others; unpack: of turning packed weights into numbers first, 0 where the product takes them
    as they are; halved: how often packed weights are half as wide as 16 bit. blocked: activations are
    quantized by block."""

    packed: float
    plain: float
    unpack: float = 0.0
    halved: float = 0.0
    blocked: bool = False

    def product(self, line: Line) -> Product:
        """How a line's products run."""
        if not line.packs:
            return Product(flops_per_s=self.plain)
        native = not self.unpack and self.packed != self.plain
        return Product(flops_per_s=self.packed, packed=native, blocked=native and self.blocked,
                       unpacked=self.halved if self.unpack else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One device's seconds in one step. memory_s, compute_s, sent_s: of bytes, FLOPs and links, each alone.
    estimate_s: with efficiencies; collectives_s and unpack_s are parts of it. cache_bytes: read of keys,
    values and states."""

    floor_s: float
    estimate_s: float
    memory_s: float
    compute_s: float
    sent_s: float
    collectives_s: float
    unpack_s: float
    flops: float
    moved_bytes: float
    cache_bytes: float
    sent_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSeconds:
    """A line's part of a step. sent_bytes belongs to collectives, which have no FLOPs."""

    line: Line
    flops: float
    moved_bytes: float
    sent_bytes: float
    floor_s: float
    estimate_s: float
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A step through all stages. floor_s, estimate_s: from its begin to its end, for the sequences in it.
    bubble: share of the stages' time that stays empty. steps: by stage."""

    floor_s: float
    estimate_s: float
    bubble: float
    steps: tuple[StepTime, ...]

    def total(self, name: str) -> float:
        """The sum of one figure of the stages."""
        return float(sum(getattr(step, name) for step in self.steps))

    def busiest(self, name: str) -> float:
        """The most of one figure that a stage has."""
        return float(max(getattr(step, name) for step in self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageForm:
    """One reading of a stage's time, linear but for a larger and a smaller of two: M forms over the sums of
    `summer`. The first num_lines against as many after them: the larger counts; the next, against cap_C: the
    smaller; the last as it is. host_s: what a step with prompts takes at the least, as the host launches its
    kernels one by one. Seconds throughout."""

    summer: Summer
    rows_MS: NDArray[np.float64]
    num_lines: int
    cap_C: NDArray[np.float64]
    host_s: float = 0.0

    def seconds(self, sums_S: NDArray[np.float64]) -> float:
        """Of a step with these sums."""
        n, y_M = self.num_lines, self.rows_MS @ sums_S
        total = np.add.reduce(np.maximum(y_M[:n], y_M[n:2 * n])) + y_M[-1]
        if len(self.cap_C):
            total += np.add.reduce(np.minimum(y_M[2 * n:-1], self.cap_C))
        return float(total)

    def total(self, y_KM: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of steps [K] whose forms have these values."""
        n = self.num_lines
        total_K: NDArray[np.float64] = np.add.reduce(np.maximum(y_KM[:, :n], y_KM[:, n:2 * n]), 1)
        total_K += y_KM[:, -1]
        return total_K + np.minimum(y_KM[:, 2 * n:-1], self.cap_C).sum(1) if len(self.cap_C) else total_K


class _StagePrice:
    """One stage's lines at an efficiency, over a step's sums [S] or over those of N steps [S, N]."""

    def __init__(self, lines: StageLines, device: HardwareSpec, rates: Rates, eff: Efficiency) -> None:
        of, made = lines, lines.on(device, rates.product)
        self._of, self._made, self._eff = of, made, eff
        self.summer, self.lines, self.comm = of.summer, of.lines, of.comm
        terms = self.summer.terms
        unpack = _UNPACK_OPS / UNPACK_TILE / rates.unpack if rates.unpack else 0.0
        self._unpack_LS = np.zeros_like(made.memory_LS)
        self._unpack_LS[:, terms.index((TOKENS, None))] = [x.count * x.packs * unpack for x in self.lines]
        bandwidth_L, rate_L = reached(of.kind_L, made.halved_2L, eff)
        self._reached_LS = made.memory_LS / bandwidth_L[:, None]
        self._worked_LS = made.compute_LS / rate_L[:, None] + self._unpack_LS
        seconds_C = np.array([0.0 if name == "step_s" else getattr(eff, name) for name in COUNTED])
        self._launch_LS = np.tensordot(seconds_C, made.counted_CLS, 1)
        collective = COUNTED.index("collective_s")
        self.latency_s = eff.collective_s * float(made.beside_CS[collective].sum())
        self._latency_K1 = np.array([[eff.collective_s * c.line.count] for c in self.comm]).reshape(-1, 1)
        self._hops_K1 = eff.hop_s * of.hops_K[:, None]
        self._beside_S = seconds_C @ made.beside_CS - (
            seconds_C[collective] * made.beside_CS[collective])
        self._cache_S = of.moved_LS.sum(0) * [name in (CONTEXT, ROWS, FEW_KEYS) for name, _ in terms]
        self.host_s = eff.eager_s * float(of.kernels_L.sum())

    def __call__(self, parts: Sequence[Rows]) -> StepTime:
        sums_S = self.summer.of(parts)
        memory_L, compute_L = self._made.memory_LS @ sums_S, self._made.compute_LS @ sums_S
        sent_s = float((self._made.sent_KS @ sums_S).sum())
        return StepTime(floor_s=float(np.maximum(memory_L, compute_L).sum()) + sent_s, sent_s=sent_s,
                        estimate_s=float(self.estimate_s(sums_S)), collectives_s=self.latency_s,
                        memory_s=float(memory_L.sum()), compute_s=float(compute_L.sum()),
                        unpack_s=float((self._unpack_LS @ sums_S).sum()),
                        flops=float((self._of.flops_LS @ sums_S).sum()),
                        moved_bytes=float((self._of.moved_LS @ sums_S).sum()),
                        cache_bytes=float(self._cache_S @ sums_S),
                        sent_bytes=float((self._of.sent_bytes_KS @ sums_S).sum()))

    def estimate_s(self, sums_S: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected seconds: lines at reached rates, collectives with their latency."""
        sent_s = self._sent(sums_S.reshape(len(sums_S), -1)).sum(0).reshape(sums_S.shape[1:])
        return self._estimates(sums_S).sum(0) + sent_s + self._beside_S @ sums_S

    def _sent(self, sums_SN: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds [K, N] of collectives: around rings or, where that is faster, directly."""
        sent_KN = self._made.sent_KS @ sums_SN / self._eff.link
        return sent_KN + self._latency_K1 + np.minimum(self._of.direct_K[:, None] * sent_KN, self._hops_K1)

    def _estimates(self, sums_S: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._launch_LS @ sums_S + np.maximum(self._reached_LS @ sums_S, self._worked_LS @ sums_S)

    def form(self, *, estimate: bool) -> StageForm:
        """The floor, or the estimate beside step_s, as forms over the sums."""
        made, sent_S = self._made, self._made.sent_KS.sum(0)
        if not estimate:
            rows_MS = np.vstack([made.memory_LS, made.compute_LS, sent_S[None]])
            return StageForm(summer=self.summer, rows_MS=rows_MS, num_lines=len(self.lines),
                             cap_C=np.zeros(0))
        plain_S = sent_S / self._eff.link + self._beside_S
        plain_S[self.summer.terms.index((ONE, None))] += float(self._latency_K1.sum())
        rows_MS = np.vstack([self._launch_LS + self._reached_LS, self._launch_LS + self._worked_LS,
                             self._of.direct_K[:, None] * made.sent_KS / self._eff.link, plain_S[None]])
        return StageForm(summer=self.summer, rows_MS=rows_MS, num_lines=len(self.lines),
                         cap_C=self._hops_K1[:, 0], host_s=self.host_s)

    def each(self, parts: Sequence[Rows]) -> list[LineSeconds]:
        """The same line by line."""
        sums_S = self.summer.of(parts)
        memory_L, compute_L, estimate_L = (self._made.memory_LS @ sums_S, self._made.compute_LS @ sums_S,
                                           self._estimates(sums_S))
        moved_L, flops_L = self._of.moved_LS @ sums_S, self._of.flops_LS @ sums_S
        found = [LineSeconds(line=line, flops=float(flops_L[i]), moved_bytes=float(moved_L[i]),
                             sent_bytes=0.0, floor_s=float(max(memory_L[i], compute_L[i])),
                             estimate_s=float(estimate_L[i]),
                             bound="memory" if memory_L[i] >= compute_L[i] else "compute")
                 for i, line in enumerate(self.lines)]
        for c, sent, sent_s, expected_1 in zip(self.comm, self._of.sent_bytes_KS @ sums_S,
                                               self._made.sent_KS @ sums_S, self._sent(sums_S[:, None]),
                                               strict=True):
            found.append(LineSeconds(line=c.line, flops=0.0, moved_bytes=0.0, sent_bytes=float(sent),
                                     floor_s=float(sent_s), bound="link",
                                     estimate_s=float(expected_1[0])))
        return found

    def ridge_rows(self) -> float:
        """Rows whose products take as long as reading all weights, every expert included."""
        weights = (ONE, PROJECTS, DISTINCT)
        whole = [any(name in weights for (name, _), _ in line.read) for line in self.lines]
        many_S = self.summer.of([Rows(rows=1e9, start=0, count=1)])
        read_S = many_S * [name in weights for name, _ in self.summer.terms]
        memory_s = float((self._made.memory_LS @ read_S)[whole].sum())
        return memory_s * 1e9 / float((self._made.compute_LS @ many_S)[whole].sum())

    def slope_s(self, part: Rows) -> float:
        """Least seconds that one more such row adds to a step of very many."""
        one, two = (self.summer.of([Rows(rows=n, start=part.start, count=part.count)]) for n in (1e9, 2e9))
        added_S = two - one
        lines = np.maximum(self._made.memory_LS @ added_S, self._made.compute_LS @ added_S).sum()
        return float(lines + (self._made.sent_KS @ added_S).sum()) / 1e9


@dataclass(slots=True, kw_only=True)
class Deployment:
    """A replica of a model on equal devices. of_stages: their lines (`ledger.work.lines_of`)."""

    of_stages: tuple[StageLines, ...]
    device: HardwareSpec
    rates: Rates
    efficiency: Efficiency
    _prices: tuple[_StagePrice, ...] = field(init=False)

    def __post_init__(self) -> None:
        made = {id(lines): _StagePrice(lines, self.device, self.rates, self.efficiency)
                for lines in {id(lines): lines for lines in self.of_stages}.values()}
        self._prices = tuple(made[id(lines)] for lines in self.of_stages)

    @property
    def layout(self) -> Layout:
        return self.of_stages[0].layout

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One device of each pipeline stage."""
        return tuple(lines.stage for lines in self.of_stages)

    def decode(self, parts: Sequence[Rows]) -> Timing:
        """A step of one group's rows, which take turns as one batch a stage: what a sequence waits for its
        next token. A row of less than one sequence a batch leaves stages empty."""
        rows = sum(part.rows for part in parts)
        turns = max(min(self.layout.pp, int(rows)), 1)
        taken = [replace(part, rows=part.rows / turns) for part in parts]
        steps = tuple(self._by_stage(lambda price: price(taken)))
        floors, estimates = [s.floor_s for s in steps], [s.estimate_s for s in steps]
        return Timing(floor_s=max(sum(floors), turns * max(floors)), steps=steps,
                      estimate_s=max(sum(estimates), turns * max(estimates)) + self.efficiency.step_s,
                      bubble=1 - turns / self.layout.pp)

    def decode_estimates(self, part: Rows, rows: Sequence[int]) -> NDArray[np.float64]:
        """`decode`'s estimate [N] at each number of rows like `part`, at once."""
        turns_N = np.clip(rows, 1, self.layout.pp)
        each_N = np.asarray(rows) / turns_N
        seconds_PN = self._by_stage(lambda price: price.estimate_s(price.summer.multiples(part, each_N)))
        return np.maximum(np.sum(seconds_PN, 0), turns_N * np.max(seconds_PN, 0)) + self.efficiency.step_s

    def prefill(self, part: Rows, chunks: int = 1) -> Timing:
        """A prompt's way through all stages. The floor lets every stage begin with the prompt's first token;
        the estimate hands it on in `chunks` equal pieces, none faster than the host launches its kernels."""
        steps = tuple(replace(step, estimate_s=max(step.estimate_s, price.host_s * chunks))
                      for price, step in zip(self._prices, self._by_stage(lambda price: price([part]))))
        floors, estimates = [s.floor_s for s in steps], [s.estimate_s for s in steps]
        slowest = floors.index(max(floors))
        token = Rows(rows=1, start=part.start, count=1)
        fills = self._by_stage(lambda price: price([token]).floor_s)
        estimate = self._handed_on(estimates, chunks)
        return Timing(floor_s=floors[slowest] + sum(fills) - fills[slowest], steps=steps,
                      estimate_s=estimate,
                      bubble=1 - sum(estimates) / (estimate - self.efficiency.step_s) / len(steps))

    def prefill_estimate(self, part: Rows, chunks: int = 1) -> tuple[float, float]:
        """`prefill`'s estimate, and that of its busiest stage."""
        estimates = self._by_stage(lambda price: max(float(price.estimate_s(price.summer.of([part]))),
                                                     price.host_s * chunks))
        return self._handed_on(estimates, chunks), max(estimates)

    def _handed_on(self, estimates: Sequence[float], chunks: int) -> float:
        """Seconds of a prompt that stages hand on in equal pieces."""
        return (sum(estimates) + (chunks - 1) * max(estimates)) / chunks + self.efficiency.step_s

    def _by_stage(self, of: Callable[[_StagePrice], T]) -> list[T]:
        """Something of every stage, asked of equal ones once."""
        made = {id(price): of(price) for price in {id(price): price for price in self._prices}.values()}
        return [made[id(price)] for price in self._prices]

    def forms(self, *, estimate: bool) -> tuple[StageForm, ...]:
        """Each stage's floor or estimate, for whoever prices many steps."""
        return tuple(price.form(estimate=estimate) for price in self._prices)

    def lines(self, parts: Sequence[Rows]) -> list[LineSeconds]:
        """A step of all stages line by line."""
        return [line for price in self._prices for line in price.each(parts)]

    def ridge_rows(self) -> float:
        """Sequences of a group from which reading weights is no longer what a step waits for: B*."""
        return min(price.ridge_rows() for price in self._prices) * self.layout.pp

    def ceiling_rows_per_s(self, part: Rows) -> float:
        """Rows a second of one group that no batch passes: the slowest stage's, weights read for nothing."""
        return 1 / max(price.slope_s(part) for price in self._prices)

