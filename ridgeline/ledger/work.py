"""A step as the estimator sees it, and the estimate: for every operation the larger of bytes over a reached
bandwidth and FLOPs over a reached rate, and beside them what is counted: launches, collectives, rows.

Legend: L lines, C counted things, N steps (leading axes, where steps are stacked).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.account import Account, Line
from ridgeline.ledger.comm import collectives, direct_excess, link_rate, ring_hops
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.layout import Layout, Stage
from ridgeline.ledger.price import coefficients
from ridgeline.ledger.sums import Rows, Summer
from ridgeline.spec.cost import CONTEXT, DISTINCT, ONE, PAIRS, ROWS, TOKENS, Term
from ridgeline.spec.hardware import HardwareSpec
from ridgeline.spec.model import ModelSpec

Array = NDArray[np.float64]

WEIGHTS, EXPERTS, CACHE = range(3)
COUNTED = ("step_s", "row_s", "launch_s", "packed_s", "blocked_s", "expert_s", "each_s", "collective_s",
           "stream")
STREAM_BYTES = 2  # of one number between operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """How a line's products run: the dense rate, FLOP/s; whether activations are quantized for them, and
    whether by block; unpacked: how often its weights are half as wide as 16 bit, where they are unpacked to
    that before they are multiplied."""

    flops_per_s: float
    packed: bool = False
    blocked: bool = False
    unpacked: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One device's work in a step. memory_L, compute_L: seconds at the device's full rates; kind_L: WEIGHTS,
    EXPERTS or CACHE. halved_2L: how often a product's numbers are half as wide as 16 bit, multiplied as such
    and unpacked first. count_C: how many of COUNTED ("stream": seconds of moving every block's input once).
    sent_s: seconds at the links' full rates, rings of all-reduces among them; num_hops: how many more hops
    than one these have; direct_s: what it adds to them when every device sends all to every other. Each may
    have a leading axis of N steps."""

    memory_L: Array
    compute_L: Array
    kind_L: NDArray[np.int64]
    halved_2L: Array
    count_C: Array
    sent_s: Any
    direct_s: Any
    num_hops: Any

    def counted(self, name: str) -> Any:
        """How many there are of one of COUNTED."""
        return self.count_C[..., COUNTED.index(name)]

    def at(self, share: Any) -> "Work":
        """The same step with a share of its rows; what it reads once, it still reads."""
        share_1 = np.asarray(share)[..., None]
        fixed_L = np.where(self.kind_L == CACHE, 0.0, 1.0)
        fixed_C = np.array([float(name not in ("row_s", "stream")) for name in COUNTED])
        return replace(self, memory_L=self.memory_L * (fixed_L + share_1 * (1 - fixed_L)),
                       compute_L=self.compute_L * share_1, sent_s=self.sent_s * share,
                       direct_s=self.direct_s * share,
                       count_C=self.count_C * (fixed_C + share_1 * (1 - fixed_C)))


def kind_of(line: Line) -> int:
    """Whose bandwidth and rate a line has."""
    names = {name for (name, _), _ in line.read}
    return EXPERTS if DISTINCT in names else CACHE if names & {CONTEXT, PAIRS} else WEIGHTS


def whole(spec: ModelSpec, account: Account) -> Stage:
    """The whole model as one device's stage, for its time alone: its weights are not weighed."""
    blocks = [block for layer in spec.layers for _, block in layer.blocks]
    return Stage(spec=spec, account=account, weights_bytes=0.0, num_mixing=len(blocks), first=True,
                 last=True, num_routed=sum(block.kind == "moe" for block in blocks))


def alone(spec: ModelSpec, account: Account, device: HardwareSpec, product: Product) -> "Worker":
    """The whole model on one device, with one kind of products."""
    return Worker([whole(spec, account)], Layout(), device, lambda line: product)


class StageLines:
    """A stage's lines and collectives as matrices over a step's sums, whatever device they run on. Legend: K
    collectives, S sums.

    moved_LS, flops_LS: bytes and FLOPs. sent_bytes_KS: of collectives; direct_K: what an all-reduce adds to
    its seconds that sends directly, as a share; hops_K: how many more hops than one its rings have;
    kernels_L: of each line in all its layers.
    """

    def __init__(self, stage: Stage, layout: Layout) -> None:
        account = stage.account
        self.stage, self.layout = stage, layout
        self.summer = Summer(account.windows, account.layers_by_router(), few=account.few)
        self.lines, self.comm, terms = account.lines, collectives(stage, layout), self.summer.terms
        self.kind_L = np.array([kind_of(line) for line in self.lines])
        self.moved_LS = (coefficients(self.lines, terms, "read")
                         + coefficients(self.lines, terms, "written"))
        self.flops_LS = coefficients(self.lines, terms, "flops")
        self.sent_bytes_KS = coefficients([c.line for c in self.comm], terms, "sent")
        self.direct_K = np.array([direct_excess(c) for c in self.comm])
        self.hops_K = np.array([float(c.line.count * ring_hops(c)) for c in self.comm])
        self.kernels_L = np.array([float(line.count * line.kernels) for line in self.lines])
        self.one = terms.index((ONE, None))
        self._counted_CLS = np.zeros((len(COUNTED), len(self.lines), len(terms)))
        self._beside_CS = np.zeros((len(COUNTED), len(terms)))
        self._count("launch_s", self.kernels_L)
        self._count("expert_s", np.array([line.count for line in self.lines]) * (self.kind_L == EXPERTS))
        for i, line in enumerate(self.lines):
            for term in {term for term, _ in line.read if term[0] == DISTINCT}:
                self._counted_CLS[COUNTED.index("each_s"), i, terms.index(term)] = line.count / layout.ep
        self._beside("row_s", (ROWS, None), 1.0)
        self._beside("collective_s", (ONE, None), sum(c.line.count for c in self.comm))
        self._beside("stream", (TOKENS, None), stage.spec.hidden_size * STREAM_BYTES * stage.num_mixing)

    def _count(self, name: str, count_L: Array) -> None:
        self._counted_CLS[COUNTED.index(name), :, self.one] = count_L

    def _beside(self, name: str, term: Term, value: float) -> None:
        self._beside_CS[COUNTED.index(name), self.summer.terms.index(term)] = value

    def on(self, device: HardwareSpec, product: Callable[[Line], Product]) -> "TimedLines":
        """The same on a device. product: how each line's products run."""
        products = [product(line) for line in self.lines]
        counted_CLS, beside_CS = self._counted_CLS.copy(), self._beside_CS.copy()
        for name, which in (("packed_s", [p.packed for p in products]),
                            ("blocked_s", [p.blocked for p in products])):
            counted_CLS[COUNTED.index(name), :, self.one] = self.kernels_L * which
        beside_CS[COUNTED.index("stream")] /= device.bytes_per_s
        halved = [(halvings(p.flops_per_s, device), p.unpacked) for p in products]
        rate_L1 = np.array([p.flops_per_s for p in products])[:, None]
        link_K1 = np.array([link_rate(device, c.ways) for c in self.comm]).reshape(-1, 1)
        return TimedLines(of=self, halved_2L=np.array(halved, float).T, counted_CLS=counted_CLS,
                          memory_LS=self.moved_LS / device.bytes_per_s, compute_LS=self.flops_LS / rate_L1,
                          beside_CS=beside_CS, sent_KS=self.sent_bytes_KS / link_K1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLines:
    """A stage's lines on a device: seconds at its full rates. halved_2L: as in Work. counted_CLS: how many of
    COUNTED each line has; beside_CS: and the stage beside its lines. sent_KS: seconds at the links' full
    rates."""

    of: StageLines
    halved_2L: Array
    memory_LS: Array
    compute_LS: Array
    counted_CLS: Array
    beside_CS: Array
    sent_KS: Array


def lines_of(found: Sequence[Stage], layout: Layout) -> tuple[StageLines, ...]:
    """Of each stage; equal stages share theirs."""
    made = {id(stage): StageLines(stage, layout) for stage in {id(x): x for x in found}.values()}
    return tuple(made[id(stage)] for stage in found)


class Worker:
    """work(parts) of a layout's stages on a device."""

    def __init__(self, stages: Sequence[Stage], layout: Layout, device: HardwareSpec,
                 product: Callable[[Line], Product]) -> None:
        self._stages = [lines.on(device, product) for lines in lines_of(stages, layout)]

    def __call__(self, parts: Sequence[Rows]) -> Work:
        """One group's rows through a device of each stage, one after another."""
        memory, compute, sent_2 = [], [], np.zeros(2)
        count_C = np.zeros(len(COUNTED))
        for stage in self._stages:
            sums_S = stage.of.summer.of(parts)
            memory.append(stage.memory_LS @ sums_S)
            compute.append(stage.compute_LS @ sums_S)
            sent_K = stage.sent_KS @ sums_S
            sent_2 += sent_K.sum(), stage.of.direct_K @ sent_K
            count_C += (stage.counted_CLS.sum(1) + stage.beside_CS) @ sums_S
        count_C[:2] = 1.0, sum(part.rows for part in parts)
        return Work(memory_L=np.concatenate(memory), compute_L=np.concatenate(compute), count_C=count_C,
                    kind_L=np.concatenate([stage.of.kind_L for stage in self._stages]),
                    halved_2L=np.concatenate([stage.halved_2L for stage in self._stages], 1),
                    sent_s=float(sent_2[0]), direct_s=float(sent_2[1]),
                    num_hops=float(sum(stage.of.hops_K.sum() for stage in self._stages)))


def stack(works: Sequence[Work]) -> Work:
    """N steps as one: lines of a kind and width side by side, filled up with lines of nothing."""
    alike = [list(zip(w.kind_L.tolist(), *w.halved_2L.tolist(), strict=True)) for w in works]
    widths: Counter[tuple[Any, ...]] = Counter()
    for keys in alike:
        widths |= Counter(keys)
    columns = sorted(widths.elements())
    memory_NL, compute_NL = np.zeros((2, len(works), len(columns)))
    for n, (work, keys) in enumerate(zip(works, alike, strict=True)):
        at = [columns.index(key) + keys[:i].count(key) for i, key in enumerate(keys)]
        memory_NL[n, at], compute_NL[n, at] = work.memory_L, work.compute_L
    sent_3N = np.array([(w.sent_s, w.direct_s, w.num_hops) for w in works]).T
    return Work(memory_L=memory_NL, compute_L=compute_NL, count_C=np.stack([w.count_C for w in works]),
                kind_L=np.array([key[0] for key in columns]),
                halved_2L=np.array([key[1:] for key in columns]).T,
                sent_s=sent_3N[0], direct_s=sent_3N[1], num_hops=sent_3N[2])


def halvings(flops_per_s: float, device: HardwareSpec) -> int:
    """How often a rate is twice that of 16-bit numbers, as it is for numbers of half their width."""
    return max(round(log2(flops_per_s / device.flops_per_s.get("bfloat16", flops_per_s))), 0)


def reached(kind_L: NDArray[np.int64], halved_2L: Array, eff: Efficiency) -> tuple[Array, Array]:
    """Reached shares of bandwidth and of the dense rate, by line."""
    return (np.array([eff.bandwidth, eff.experts, eff.cache])[kind_L] * eff.unpack ** halved_2L[1],
            np.array([eff.prefill, eff.experts_prefill, eff.attention])[kind_L] * eff.narrow ** halved_2L[0])


def step_s(work: Work, eff: Efficiency) -> Any:
    """Expected seconds of a step: not below its floor while no share is above 1. An all-reduce sends
    directly, in one hop, or around a ring, in many, whichever is faster."""
    bandwidth_L, rate_L = reached(work.kind_L, work.halved_2L, eff)
    kernels = np.maximum(work.memory_L / bandwidth_L, work.compute_L / rate_L).sum(-1)
    sent_s = work.sent_s / eff.link + np.minimum(work.direct_s / eff.link, work.num_hops * eff.hop_s)
    return kernels + work.count_C @ [getattr(eff, name) for name in COUNTED] + sent_s


def added_s(work: Work, eff: Efficiency) -> Any:
    """Expected seconds that the same work adds to a step that runs anyway, has read the weights and launched
    its operations: a prompt beside decodes."""
    _, rate_L = reached(work.kind_L, work.halved_2L, eff)
    return (work.compute_L / rate_L).sum(-1) + work.counted("stream") * eff.stream + work.sent_s / eff.link
