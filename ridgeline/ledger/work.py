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
from ridgeline.ledger.comm import collectives, direct_excess, link_rate
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.layout import Layout, Stage
from ridgeline.ledger.price import coefficients
from ridgeline.ledger.sums import Rows, Summer
from ridgeline.spec.cost import CONTEXT, DISTINCT, PAIRS, TOKENS
from ridgeline.spec.hardware import HardwareSpec
from ridgeline.spec.model import ModelSpec

Array = NDArray[np.float64]

WEIGHTS, EXPERTS, CACHE = range(3)
COUNTED = ("step_s", "row_s", "launch_s", "packed_s", "blocked_s", "expert_s", "collective_s", "stream")
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
    sent_s: seconds at the links' full rates, rings of all-reduces among them; num_rings: how many these are;
    direct_s: what it adds to them when every device sends all to every other. Each may have a leading axis of
    N steps."""

    memory_L: Array
    compute_L: Array
    kind_L: NDArray[np.int64]
    halved_2L: Array
    count_C: Array
    sent_s: Any
    direct_s: Any
    num_rings: Any

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


def alone(spec: ModelSpec, account: Account, device: HardwareSpec, product: Product) -> "Worker":
    """The whole model on one device, with one kind of products."""
    blocks = [block for layer in spec.layers for _, block in layer.blocks]
    stage = Stage(spec=spec, account=account, weights_bytes=0.0, num_mixing=len(blocks), first=True,
                  last=True, num_routed=sum(block.kind == "moe" for block in blocks))
    return Worker([stage], Layout(), device, lambda line: product)


class Worker:
    """work(parts) of a layout's stages on a device: the lines as matrices, made once."""

    def __init__(self, stages: Sequence[Stage], layout: Layout, device: HardwareSpec,
                 product: Callable[[Line], Product]) -> None:
        """product: how each line's products run."""
        self._stages = [self._matrices(stage, layout, device, product) for stage in stages]
        lines = [line for stage in stages for line in stage.account.lines]
        self._kind_L = np.array([kind_of(line) for line in lines])
        self._halved_2L = np.array([(halvings(product(line).flops_per_s, device), product(line).unpacked)
                                    for line in lines]).T
        self._num_rings = float(sum(c.line.count for stage in stages for c in collectives(stage, layout)
                                    if c.line.op == "all-reduce"))

    @staticmethod
    def _matrices(stage: Stage, layout: Layout, device: HardwareSpec,
                  product: Callable[[Line], Product]) -> tuple[Summer, Array, Array, Array, Array, Array]:
        account = stage.account
        summer = Summer(account.windows, account.layers_by_router(), few=account.few)
        terms, lines, comm = summer.terms, account.lines, collectives(stage, layout)
        products = [product(line) for line in lines]
        moved_LS = coefficients(lines, terms, "read") + coefficients(lines, terms, "written")
        rate_L1 = np.array([[p.flops_per_s] for p in products])
        link_C1 = np.array([[link_rate(device, c.ways)] for c in comm]).reshape(-1, 1)
        sent_CS = coefficients([c.line for c in comm], terms, "sent") / link_C1
        direct_C = np.array([direct_excess(c) for c in comm])
        counts = [line.count for line in lines]
        count_C = np.array([0.0, 0.0, sum(counts), sum(n for n, p in zip(counts, products) if p.packed),
                            sum(n for n, p in zip(counts, products) if p.blocked), stage.num_routed,
                            sum(c.line.count for c in comm), 0.0])
        stream_S = np.array([float(name == TOKENS) for name, _ in terms]) * (
            stage.spec.hidden_size * STREAM_BYTES * stage.num_mixing / device.bytes_per_s)
        return (summer, moved_LS / device.bytes_per_s, coefficients(lines, terms, "flops") / rate_L1,
                np.stack([sent_CS.sum(0), direct_C @ sent_CS]), count_C, stream_S)

    def __call__(self, parts: Sequence[Rows]) -> Work:
        """One group's rows through a device of each stage, one after another."""
        memory, compute, sent_2 = [], [], np.zeros(2)
        count_C = np.zeros(len(COUNTED))
        count_C[:2] = 1.0, sum(part.rows for part in parts)
        for summer, memory_LS, compute_LS, sent_2S, stage_C, stream_S in self._stages:
            sums_S = summer.of(parts)
            memory.append(memory_LS @ sums_S)
            compute.append(compute_LS @ sums_S)
            sent_2 += sent_2S @ sums_S
            count_C += stage_C
            count_C[-1] += stream_S @ sums_S
        return Work(memory_L=np.concatenate(memory), compute_L=np.concatenate(compute), kind_L=self._kind_L,
                    halved_2L=self._halved_2L, count_C=count_C, sent_s=float(sent_2[0]),
                    direct_s=float(sent_2[1]), num_rings=self._num_rings)


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
    sent_3N = np.array([(w.sent_s, w.direct_s, w.num_rings) for w in works]).T
    return Work(memory_L=memory_NL, compute_L=compute_NL, count_C=np.stack([w.count_C for w in works]),
                kind_L=np.array([key[0] for key in columns]),
                halved_2L=np.array([key[1:] for key in columns]).T,
                sent_s=sent_3N[0], direct_s=sent_3N[1], num_rings=sent_3N[2])


def halvings(flops_per_s: float, device: HardwareSpec) -> int:
    """How often a rate is twice that of 16-bit numbers, as it is for numbers of half their width."""
    return max(round(log2(flops_per_s / device.flops_per_s.get("bfloat16", flops_per_s))), 0)


def shares(kind_L: NDArray[np.int64], eff: Efficiency) -> tuple[Array, Array]:
    """Reached shares of bandwidth and of the dense rate, by line."""
    return (np.array([eff.bandwidth, eff.experts, eff.cache])[kind_L],
            np.array([eff.prefill, eff.experts_prefill, eff.attention])[kind_L])


def _reached(work: Work, eff: Efficiency) -> tuple[Array, Array]:
    """`shares` of the lines' own numbers."""
    bandwidth_L, rate_L = shares(work.kind_L, eff)
    return bandwidth_L * eff.unpack ** work.halved_2L[1], rate_L * eff.narrow ** work.halved_2L[0]


def step_s(work: Work, eff: Efficiency) -> Any:
    """Expected seconds of a step: not below its floor while no share is above 1. An all-reduce sends
    directly, in one phase, or around a ring, in two, whichever is faster."""
    bandwidth_L, rate_L = _reached(work, eff)
    kernels = np.maximum(work.memory_L / bandwidth_L, work.compute_L / rate_L).sum(-1)
    sent_s = work.sent_s / eff.link + np.minimum(work.direct_s / eff.link, work.num_rings * eff.collective_s)
    return kernels + work.count_C @ [getattr(eff, name) for name in COUNTED] + sent_s


def added_s(work: Work, eff: Efficiency) -> Any:
    """Expected seconds that the same work adds to a step that runs anyway, has read the weights and launched
    its operations: a prompt beside decodes."""
    _, rate_L = _reached(work, eff)
    return (work.compute_L / rate_L).sum(-1) + work.count_C[..., -1] * eff.stream + work.sent_s / eff.link
