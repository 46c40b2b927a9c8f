"""How a model lies on several devices: a device's share of it is a ModelSpec of its own, with its layers and
with heads and widths cut, so that parameters, cache and account follow as for a whole model. Knows no device
and no time; what the shares say to one another is `comm`'s.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from ridgeline.base.errors import ConfigError
from ridgeline.blocks.moe.spec import MoeSpec
from ridgeline.ledger.account import Account, Line, WeightBytes, account
from ridgeline.spec.block import BlockSpec
from ridgeline.spec.cost import DISTINCT, Form, scale
from ridgeline.spec.model import LayerSpec, ModelSpec

# Fields of block descriptions that tensor parallelism divides; and those that it divides down to one, past
# which devices hold copies. A latent is not cut: every device keeps all of it.
_CUT = ("num_heads", "num_key_heads", "num_value_heads", "intermediate_size", "shared_size", "table_rows")
_CUT_TO_ONE = ("num_kv_heads", "num_groups")
_LARGEST_TP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of parallelism: tensor, pipeline, expert, replicas.

    Experts lie on ep devices. Up to tp they are those that cut the rest of a layer; beyond, ep / tp groups of
    tp devices each attend to sequences of their own and share the experts (attention is data parallel).
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    @property
    def groups(self) -> int:
        """Groups of a replica that attend to different sequences."""
        return max(self.ep // self.tp, 1)

    @property
    def replica_devices(self) -> int:
        return self.tp * self.groups * self.pp

    @property
    def num_devices(self) -> int:
        return self.replica_devices * self.dp

    @property
    def expert_cut(self) -> int:
        """Parts that one expert is cut into."""
        return max(self.tp // self.ep, 1)

    def text(self) -> str:
        return f"TP {self.tp} x PP {self.pp} x EP {self.ep} x DP {self.dp}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One device of one pipeline stage. spec: its share of the model; lines: what it computes, embedding and
    head only where they lie; weights_bytes: what it holds. num_mixing: blocks whose sum runs over devices;
    num_routed: of these, those with routed experts."""

    spec: ModelSpec
    account: Account
    weights_bytes: float
    num_mixing: int
    num_routed: int
    first: bool
    last: bool


def _parts(block: BlockSpec) -> Iterator[BlockSpec]:
    """The block, and the block that it is made around, where there is one."""
    yield block
    for f in fields(block):  # type: ignore[arg-type]
        inner = getattr(block, f.name)
        if hasattr(inner, "params") and hasattr(inner, "cost"):
            yield inner


def _blocks(spec: ModelSpec) -> Iterator[BlockSpec]:
    return (part for block, _ in spec.blocks() for part in _parts(block))


def _is_cut(block: BlockSpec) -> bool:
    """False for a block that every device computes as a whole."""
    return any(hasattr(part, name) for part in _parts(block) for name in _CUT)


def _obstacle(spec: ModelSpec, tp: int) -> str:
    """What tp does not divide, "" when it divides all."""
    if spec.vocab_size % tp:
        return f"the vocabulary of {spec.vocab_size}"
    for block in _blocks(spec):
        for name in _CUT:
            if getattr(block, name, 0) % tp:
                return f"{name.replace('_', ' ').removeprefix('num ')} {getattr(block, name)} of {block.kind}"
        for name in _CUT_TO_ONE:
            size = getattr(block, name, 1)
            if size % tp and tp % size:
                return f"{name.replace('_', ' ').removeprefix('num ')} {size} of {block.kind}"
    return ""


def tensor_sizes(spec: ModelSpec) -> tuple[int, ...]:
    """Degrees of tensor parallelism that divide heads, widths and vocabulary."""
    return tuple(tp for tp in range(1, _LARGEST_TP + 1) if not _obstacle(spec, tp))


def num_experts(spec: ModelSpec) -> set[int]:
    """Experts of a layer, each number that occurs; empty without a mixture of experts."""
    return {block.router.num_experts for block in _blocks(spec) if isinstance(block, MoeSpec)}


def check_layout(spec: ModelSpec, layout: Layout) -> None:
    """ConfigError, with the sizes that work, for a layout that the model's shape does not allow."""
    if obstacle := _obstacle(spec, layout.tp):
        sizes = ", ".join(map(str, tensor_sizes(spec)))
        raise ConfigError(f"TP {layout.tp} does not divide {obstacle}: sizes that work are {sizes}")
    if layout.pp > len(spec.layers):
        raise ConfigError(f"PP {layout.pp} is more than the {len(spec.layers)} layers: use at most that many")
    if layout.pp > 1 and any(getattr(block, "reads_layer", None) is not None for block in _blocks(spec)):
        raise ConfigError("layers that read another layer's cache cannot be split into stages: use PP 1")
    experts = num_experts(spec)
    if layout.ep > 1 and not experts:
        raise ConfigError(f"EP {layout.ep} needs a mixture of experts, which this model is not: use EP 1")
    if any(size % layout.ep for size in experts) or max(layout.ep, layout.tp) % min(layout.ep, layout.tp):
        works = [n for n in range(1, min(experts) + 1) if not any(size % n for size in experts)
                 and max(n, layout.tp) % min(n, layout.tp) == 0]
        raise ConfigError(f"EP {layout.ep} does not divide {max(experts)} experts beside TP {layout.tp}: "
                          f"sizes that work are {', '.join(map(str, works))}")


def share_of_block(block: BlockSpec, layout: Layout) -> BlockSpec:
    """What one device computes of a block; experts are counted whole and spread by `stages`."""
    sizes = {f.name for f in fields(block)}  # type: ignore[arg-type]
    cut: dict[str, Any] = {name: getattr(block, name) // layout.tp for name in _CUT if name in sizes}
    cut |= {name: max(getattr(block, name) // layout.tp, 1) for name in _CUT_TO_ONE if name in sizes}
    cut |= {name: share_of_block(getattr(block, name), layout) for name in sizes
            if getattr(block, name) in list(_parts(block))[1:]}
    if isinstance(block, MoeSpec):
        cut["intermediate_size"] = block.intermediate_size // layout.expert_cut
    return replace(block, **cut) if cut else block  # type: ignore[type-var]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A model on a layout, before it is known in which formats it is held: one device's share of each
    pipeline stage, and the number of its first layer. Stages of equal layers share a share."""

    layout: Layout
    shares: tuple[ModelSpec, ...]
    begins: tuple[int, ...]


def cut(spec: ModelSpec, layout: Layout) -> Cut:
    """ConfigError where the shape does not allow the layout. Earlier stages take the layers that do not
    divide: the last has the head."""
    check_layout(spec, layout)
    made = {id(layer): LayerSpec(blocks=tuple((name, share_of_block(block, layout))
                                              for name, block in layer.blocks)) for layer, _ in spec.alike()}
    layers = [made[id(layer)] for layer in spec.layers]
    each, more = divmod(len(layers), layout.pp)
    begins = [at * each + min(at, more) for at in range(layout.pp + 1)]
    shares: dict[tuple[int, ...], ModelSpec] = {}
    of_stage = [layers[begin:end] for begin, end in pairwise(begins)]
    for held in of_stage:
        key = tuple(map(id, held))
        if key not in shares:
            shares[key] = replace(spec, vocab_size=spec.vocab_size // layout.tp, layers=tuple(held))
    return Cut(layout=layout, shares=tuple(shares[tuple(map(id, held))] for held in of_stage),
               begins=tuple(begins[:-1]))


def _spread(line: Line, layout: Layout, skew: float) -> Line:
    """A line of experts on one of ep devices, which serves all groups."""
    if not any(name == DISTINCT for (name, _), _ in line.read):
        return line

    def routed(one: Form) -> Form:
        return tuple(((name, (*of[:2], skew, layout.groups) if isinstance(of, tuple) else of), value)
                     for (name, of), value in one)

    read = routed(line.read) if skew or layout.groups > 1 else line.read
    return replace(line, flops=scale(line.flops, layout.groups / layout.ep), read=scale(read, 1 / layout.ep),
                   packs=line.packs // layout.ep)


def _layer_bytes(layer: LayerSpec, weight_bytes: WeightBytes, ep: int) -> float:
    total = 0.0
    for name, block in layer.blocks:
        spread = {of for cost in block.cost() for of in cost.share_of}
        for param in block.params():
            held = weight_bytes(f"layers.0.{name}.{param.name}", param)
            total += held / ep if param.name in spread else held
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer as it is held: its lines, with those of embedding and head around them, and its bytes."""

    embed: Line
    lines: tuple[Line, ...]
    head: Line
    held_bytes: float


def _layer(share: ModelSpec, layer: LayerSpec, index: int, layout: Layout, held: "_Held") -> _Layer:
    embed, *lines, head = account(replace(share, layers=(layer,)), weight_bytes=held.of_layer(index),
                                  cache_element_bytes=held.element_bytes).lines
    return _Layer(embed=embed, lines=tuple(_spread(x, layout, held.skew) for x in lines), head=head,
                  held_bytes=_layer_bytes(layer, held.of_layer(index), layout.ep))


def _stage(share: ModelSpec, at: int, begin: int, layout: Layout, held: "_Held",
           made: dict[tuple[int, object], _Layer]) -> Stage:
    """made: the layers of the stages before, by what makes them alike."""
    first, last = at == 0, at == layout.pp - 1
    alike: dict[tuple[int, object], list[int]] = {}
    for index, layer in enumerate(share.layers, begin):
        alike.setdefault((id(layer), held.layer_key(index)), []).append(index)
    for key, (index, *_) in alike.items():
        if key not in made:
            made[key] = _layer(share, share.layers[index - begin], index, layout, held)
    lines = [replace(x, count=x.count * len(same)) for key, same in alike.items() for x in made[key].lines]
    held_bytes = sum(len(same) * made[key].held_bytes for key, same in alike.items())
    outside = dict(replace(share, layers=()).params())
    held_bytes += sum(held.weight_bytes(name, param) for name, param in outside.items()
                      if (first if name.startswith(("embed.", "vision.")) else last))
    if share.tied_embeddings and last and not first:
        held_bytes += held.weight_bytes("embed.weight", outside["embed.weight"])
    one = made[next(iter(alike))]
    return Stage(spec=share, weights_bytes=held_bytes, first=first, last=last,
                 num_mixing=sum(many * _is_cut(block) for block, many in share.blocks()),
                 num_routed=sum(many * isinstance(block, MoeSpec) for block, many in share.blocks()),
                 account=Account(lines=(*[one.embed][:first], *lines, *[one.head][:last])))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """How a model is held and routed; see `stages`."""

    weight_bytes: WeightBytes
    element_bytes: float
    skew: float
    layer_key: Callable[[int], object]

    def of_layer(self, index: int) -> WeightBytes:
        """For a layer that stands alone, as number 0."""
        return lambda name, param: self.weight_bytes(name.replace("layers.0.", f"layers.{index}.", 1), param)


def stages(of: Cut, *, weight_bytes: WeightBytes, cache_element_bytes: float, skew: float = 0.0,
           layer_key: Callable[[int], object] = lambda index: 0) -> tuple[Stage, ...]:
    """One device of each pipeline stage.

    weight_bytes: of a parameter as cut. skew: of the routers' choices (`spec.cost.expected_distinct`).
    layer_key: differs for equal layers that are held in different formats.
    """
    held = _Held(weight_bytes=weight_bytes, element_bytes=cache_element_bytes, skew=skew, layer_key=layer_key)
    made: dict[object, Stage] = {}  # stages in the middle are often alike
    layers: dict[tuple[int, object], _Layer] = {}
    found = []
    for at, (share, begin) in enumerate(zip(of.shares, of.begins, strict=True)):
        key = (id(share), at == 0, at == of.layout.pp - 1,
               tuple(map(layer_key, range(begin, begin + len(share.layers)))))
        if key not in made:
            made[key] = _stage(share, at, begin, of.layout, held, layers)
        found.append(made[key])
    return tuple(found)


def total_weights(found: Iterable[Stage], layout: Layout) -> float:
    """Bytes of a replica's weights over all its devices, copies included."""
    return sum(stage.weights_bytes for stage in found) * layout.tp * layout.groups
