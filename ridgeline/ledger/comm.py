"""What devices say to one another: collectives and transfers as lines of bytes sent, and the links they take.

The least time of a collective is its bytes over the link; its latency, which is most of it in decode, is an
estimate's (`efficiency.collective_s`, counted once a collective).
"""

from dataclasses import dataclass

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.account import Line
from ridgeline.ledger.layout import Layout, Stage
from ridgeline.spec.cost import form
from ridgeline.spec.hardware import HardwareSpec

HOST_DEVICES = 8  # that one host links directly
_ELEMENT = 2  # bytes of an activation between devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A line of `count` collectives a step, and the devices that take part."""

    line: Line
    ways: int


def ring_share(ways: int) -> float:
    """2 (n - 1) / n of the payload that each device of a ring all-reduce sends (Patarasu and Yuan 2009)."""
    return 2.0 * (ways - 1) / ways


def direct_excess(one: Collective) -> float:
    """What an all-reduce sends more, as a share of its ring's bytes, when every device sends all that it has
    to every other at once (n - 1 payloads): one latency, where a ring's scatter and gather have two."""
    return one.ways / 2 - 1 if one.line.op == "all-reduce" else 0.0


def ring_hops(one: Collective) -> int:
    """How many hops of a message around a ring come after the first: 2 (n - 1) in all."""
    return 2 * one.ways - 3 if one.line.op == "all-reduce" else 0


def link_rate(device: HardwareSpec, ways: int) -> float:
    """Bytes/s in one direction between `ways` devices: inside a host the device link, else PCIe; beyond it
    the network. ConfigError when none is known."""
    order = ("device", "host", "network") if ways <= HOST_DEVICES else ("network",)
    for name in order:
        if name in device.links:
            return device.links[name]
    works = "one device" if ways <= HOST_DEVICES else f"at most {HOST_DEVICES} a replica"
    raise ConfigError(f"{device.name} has no {order[-1]} link that is known, so that {ways} devices together "
                      f"cannot be priced: use {works}")


def _line(op: str, count: int, *, tokens: float = 0, projected: float = 0) -> Line:
    return Line(block="comm", op=op, count=count, flops=(), read=(), written=(),
                sent=form(tokens=tokens, projected=projected))


def collectives(stage: Stage, layout: Layout) -> tuple[Collective, ...]:
    """What a device of a stage sends each step (Pope et al. 2022, section 3): an all-reduce a block and one
    of the cut embedding, the gathered logits, two all-to-alls (there and back) a layer whose experts serve
    several groups, and one hand-over to the next stage. Activations are 16 bit."""
    tp, row = layout.tp, float(stage.spec.hidden_size * _ELEMENT)
    found = []
    exchanged = stage.num_routed if layout.groups > 1 else 0
    if tp > 1:
        reduced = stage.num_mixing - exchanged + stage.first
        found.append(Collective(ways=tp, line=_line("all-reduce", reduced, tokens=ring_share(tp) * row)))
        if stage.last:
            found.append(Collective(ways=tp, line=_line(
                "logits", 1, projected=(tp - 1) * float(stage.spec.vocab_size * _ELEMENT))))
    if exchanged:
        top_k = max(router[1] for router in stage.account.layers_by_router())
        each = top_k * row * (layout.ep - 1) / layout.ep / tp
        found.append(Collective(ways=layout.ep, line=_line("all-to-all", 2 * exchanged, tokens=each)))
    if layout.pp > 1:
        sent = {"projected": 4.0} if stage.last else {"tokens": row / tp}
        found.append(Collective(ways=layout.replica_devices, line=_line("hand-over", 1, **sent)))
    return tuple(found)


def transfer_s(num_bytes: float, bytes_per_s: float) -> float:
    """Least seconds to move a prompt's cache from one device to another (disaggregated prefill)."""
    return num_bytes / bytes_per_s
