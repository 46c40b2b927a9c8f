"""The account of a step: for every operation the FLOPs that must run and the bytes that must move.

The exact reading: weights are read once a step in the format that holds them; the embedding is a gather of
one row a token; the head runs on the positions that are projected. Activations between operations are left
out, since nothing forces them through memory: the account is what a perfect engine could not avoid. Knows no
device and no time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ridgeline.spec.block import BlockSpec, ParamSpec
from ridgeline.spec.cost import (
    CONTEXT,
    DISTINCT,
    FEW,
    PAIRS,
    CostLine,
    Form,
    Router,
    StepSums,
    Term,
    add,
    form,
    scale,
)
from ridgeline.spec.model import ModelSpec

WeightBytes = Callable[[str, ParamSpec], float]
"""Bytes of a parameter as held, by its full name: `spec.quant.WeightPlan.num_bytes`, or what was loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One operation of `count` equal layers, as forms over a step's sums for one layer.

    block: the kind of block it belongs to ("attention", "mlp", "model" for what is outside the layers).
    flops in FLOP; read, written, sent in bytes, weights and cache included. packs: elements of the matrices
    that are held in fewer than 16 bits, of one layer (experts: all of them): their products run in other
    arithmetic, or they are unpacked first. kernels: that one layer's operation takes at least.
    """

    block: str
    op: str
    count: int
    flops: Form
    read: Form
    written: Form
    sent: Form
    packs: int = 0
    kernels: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCost:
    """A line at one step, over all its layers."""

    block: str
    op: str
    count: int
    flops: float
    read_bytes: float
    written_bytes: float
    sent_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The lines of a model in the order in which a step meets them."""

    lines: tuple[Line, ...]

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The attention windows that the lines speak of; None is full attention."""
        return tuple(dict.fromkeys(of for name, of in self._terms()
                                   if name in (PAIRS, CONTEXT) and not isinstance(of, tuple)))

    def layers_by_router(self) -> dict[Router, int]:
        """The routers that the lines speak of, each with its number of layers."""
        found: dict[Router, int] = {}
        for line in self.lines:
            for (name, of), _ in line.read:
                if name == DISTINCT and isinstance(of, tuple):
                    found[of] = found.get(of, 0) + line.count
        return found

    @property
    def few(self) -> bool:
        """True when a line counts rows of few tokens apart."""
        return any(name in FEW for name, _ in self._terms())

    def _terms(self) -> list[Term]:
        return [term for line in self.lines for one in (line.flops, line.read, line.written, line.sent)
                for term, _ in one]

    def at(self, sums: StepSums) -> tuple[LineCost, ...]:
        """Every line priced in FLOPs and bytes."""
        def total(one: Form, count: int) -> float:
            return count * sum(value * sums.value(term) for term, value in one)

        return tuple(LineCost(block=x.block, op=x.op, count=x.count, flops=total(x.flops, x.count),
                              read_bytes=total(x.read, x.count), written_bytes=total(x.written, x.count),
                              sent_bytes=total(x.sent, x.count)) for x in self.lines)


def _block_lines(prefix: str, block: BlockSpec, weight_bytes: WeightBytes,
                 element_bytes: float) -> list[Line]:
    params = {param.name: param for param in block.params()}
    packed = {name: _packed(param, weight_bytes(f"{prefix}.{name}", param)) for name, param in params.items()}
    lines = []
    for cost in block.cost():
        whole, part = (sum(weight_bytes(f"{prefix}.{name}", params[name]) for name in names)
                       for names in (cost.weights, cost.share_of))
        lines.append(Line(block=block.kind, op=cost.op, count=1, flops=cost.flops,
                          read=add((cost.read, form(one=whole), scale(cost.share, part),
                                    scale(cost.cache_read, element_bytes))),
                          written=add((cost.written, scale(cost.cache_written, element_bytes))),
                          sent=cost.sent, packs=sum(packed[name] for name in cost.weights + cost.share_of),
                          kernels=_kernels(cost, params)))
    return lines


def _kernels(cost: CostLine, params: Mapping[str, ParamSpec]) -> int:
    """Kernels that a step cannot do without: one a matrix, and one over the cache."""
    matrices = sum(params[name].role in ("linear", "plain") for name in cost.weights + cost.share_of)
    return max(matrices + bool(cost.cache_read), 1)


def _packed(param: ParamSpec, held_bytes: float) -> int:
    """Elements of a matrix that is held in fewer than 16 bits; 0 of anything else."""
    return param.num_elements if param.role == "linear" and held_bytes < 1.5 * param.num_elements else 0


def _projected(flops: Form) -> Form:
    """What each token takes, of the projected ones alone."""
    return tuple((("projected" if name == "tokens" else name, of), value) for (name, of), value in flops)


def _embedding(spec: ModelSpec, weight_bytes: WeightBytes) -> Line:
    table = ParamSpec(name="weight", shape=(spec.vocab_size, spec.hidden_size), role="embed")
    row_bytes = weight_bytes("embed.weight", table) / spec.vocab_size
    return Line(block="model", op="embed", count=1, flops=(), read=form(tokens=row_bytes), written=(),
                sent=())


def _head(spec: ModelSpec, weight_bytes: WeightBytes) -> Line:
    norm = ParamSpec(name="weight", shape=(spec.hidden_size,), role="norm")
    matrix = ParamSpec(name="weight", shape=(spec.vocab_size, spec.hidden_size), role="linear")
    num_bytes = weight_bytes("final_norm.weight", norm) + weight_bytes("head.weight", matrix)
    flops = 2.0 * spec.vocab_size * spec.hidden_size
    return Line(block="model", op="head", count=1, flops=form(projected=flops), read=form(projects=num_bytes),
                written=(), sent=())


def account(spec: ModelSpec, *, weight_bytes: WeightBytes, cache_element_bytes: float,
            ends_early: bool = False) -> Account:
    """The account of a model; equal lines of equal layers are folded into one.

    weight_bytes: asked for "head.weight" also where the embedding is tied. cache_element_bytes: of one K or V
    number. ends_early: behind the last layer's attention only projected positions go on, through a plain
    feed-forward block; no token sees what it makes of another.
    """
    end = len(spec.layers) - 1, spec.layers[-1].blocks[-1][0]
    folded: dict[tuple[str, str, Form, Form, Form, Form, int, int], int] = {}
    for index, layer in enumerate(spec.layers):
        for name, block in layer.blocks:
            lines = _block_lines(f"layers.{index}.{name}", block, weight_bytes, cache_element_bytes)
            if ends_early and (index, name) == end and block.kind == "mlp":
                lines = [replace(x, flops=_projected(x.flops)) for x in lines]
            for x in lines:
                key = (x.block, x.op, x.flops, x.read, x.written, x.sent, x.packs, x.kernels)
                folded[key] = folded.get(key, 0) + 1
    layers = tuple(
        Line(block=block, op=op, count=count, flops=flops, read=read, written=written, sent=sent, packs=packs,
             kernels=kernels)
        for (block, op, flops, read, written, sent, packs, kernels), count in folded.items())
    return Account(lines=(_embedding(spec, weight_bytes), *layers, _head(spec, weight_bytes)))
