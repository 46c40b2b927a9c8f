"""A step as the estimator sees it, and the estimate: for every operation the larger of bytes over a reached
bandwidth and FLOPs over a reached rate, and beside them what is counted: launches, collectives, rows.

Legend: L lines, C counted things, N steps (leading axes, where steps are stacked).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.account import Account, Line
from ridgeline.ledger.comm import collectives, link_rate
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
    whether by block."""

    flops_per_s: float
    packed: bool = False
    blocked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One device's work in a step. memory_L, compute_L: seconds at the device's full rates; kind_L: WEIGHTS,
    EXPERTS or CACHE. count_C: how many of COUNTED ("stream": seconds of moving every block's input once).
    sent_s: seconds at the links' full rates. Each may have a leading axis of N steps."""

    memory_L: Array
    compute_L: Array
    kind_L: NDArray[np.int64]
    count_C: Array
    sent_s: Any

    def at(self, share: Any) -> "Work":
        """The same step with a share of its rows; what it reads once, it still reads."""
        share_1 = np.asarray(share)[..., None]
        fixed_L = np.where(self.kind_L == CACHE, 0.0, 1.0)
        fixed_C = np.array([float(name not in ("row_s", "stream")) for name in COUNTED])
        return Work(memory_L=self.memory_L * (fixed_L + share_1 * (1 - fixed_L)), kind_L=self.kind_L,
                    compute_L=self.compute_L * share_1, sent_s=self.sent_s * share,
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
        self._kind_L = np.array([kind_of(line) for stage in stages for line in stage.account.lines])

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
        counts = [line.count for line in lines]
        count_C = np.array([0.0, 0.0, sum(counts), sum(n for n, p in zip(counts, products) if p.packed),
                            sum(n for n, p in zip(counts, products) if p.blocked), stage.num_routed,
                            sum(c.line.count for c in comm), 0.0])
        stream_S = np.array([float(name == TOKENS) for name, _ in terms]) * (
            stage.spec.hidden_size * STREAM_BYTES * stage.num_mixing / device.bytes_per_s)
        return (summer, moved_LS / device.bytes_per_s, coefficients(lines, terms, "flops") / rate_L1,
                (coefficients([c.line for c in comm], terms, "sent") / link_C1).sum(0), count_C, stream_S)

    def __call__(self, parts: Sequence[Rows]) -> Work:
        """One group's rows through a device of each stage, one after another."""
        memory, compute, sent_s = [], [], 0.0
        count_C = np.zeros(len(COUNTED))
        count_C[:2] = 1.0, sum(part.rows for part in parts)
        for summer, memory_LS, compute_LS, sent_S, stage_C, stream_S in self._stages:
            sums_S = summer.of(parts)
            memory.append(memory_LS @ sums_S)
            compute.append(compute_LS @ sums_S)
            sent_s += float(sent_S @ sums_S)
            count_C += stage_C
            count_C[-1] += stream_S @ sums_S
        return Work(memory_L=np.concatenate(memory), compute_L=np.concatenate(compute), kind_L=self._kind_L,
                    count_C=count_C, sent_s=sent_s)


def stack(works: Sequence[Work]) -> Work:
    """N steps as one: lines of a kind side by side, filled up with lines of nothing."""
    widths = [max(int((w.kind_L == kind).sum()) for w in works) for kind in (WEIGHTS, EXPERTS, CACHE)]
    kind_L = np.repeat((WEIGHTS, EXPERTS, CACHE), widths)
    memory_NL, compute_NL = np.zeros((2, len(works), len(kind_L)))
    for n, work in enumerate(works):
        for kind in (WEIGHTS, EXPERTS, CACHE):
            own, at = work.kind_L == kind, sum(widths[:kind])
            memory_NL[n, at:at + own.sum()] = work.memory_L[own]
            compute_NL[n, at:at + own.sum()] = work.compute_L[own]
    return Work(memory_L=memory_NL, compute_L=compute_NL, kind_L=kind_L,
                count_C=np.stack([w.count_C for w in works]), sent_s=np.array([w.sent_s for w in works]))


def shares(kind_L: NDArray[np.int64], eff: Efficiency) -> tuple[Array, Array]:
    """Reached shares of bandwidth and of the dense rate, by line."""
    return (np.array([eff.bandwidth, eff.experts, eff.cache])[kind_L],
            np.array([eff.prefill, eff.experts_prefill, eff.attention])[kind_L])


def step_s(work: Work, eff: Efficiency) -> Any:
    """Expected seconds of a step: not below its floor while no share is above 1."""
    bandwidth_L, rate_L = shares(work.kind_L, eff)
    kernels = np.maximum(work.memory_L / bandwidth_L, work.compute_L / rate_L).sum(-1)
    return kernels + work.count_C @ [getattr(eff, name) for name in COUNTED] + work.sent_s / eff.link


def added_s(work: Work, eff: Efficiency) -> Any:
    """Expected seconds that the same work adds to a step that runs anyway, has read the weights and launched
    its operations: a prompt beside decodes."""
    _, rate_L = shares(work.kind_L, eff)
    return (work.compute_L / rate_L).sum(-1) + work.count_C[..., -1] * eff.stream + work.sent_s / eff.link
