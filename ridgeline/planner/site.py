"""From a planned deployment to a machine for the simulator: one replica, with the memory that the plan leaves
to its cache. Knows no workload."""

from dataclasses import replace
from math import inf

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.efficiency import Calibration, Waking
from ridgeline.ledger.memory import needed_cache_bytes
from ridgeline.ledger.steps import NominalSteps, Steps, StepSeconds
from ridgeline.planner.room import KV_BYTES
from ridgeline.planner.setup import Setup
from ridgeline.schedule.executor import Capacity
from ridgeline.sim.node import Machine
from ridgeline.spec.cache import plan_layout

READINGS = ("estimate", "floor", "nominal")  # of a step's time: the last by closed forms over all parameters
BLOCK_TOKENS = 64  # what the live engine's GPU kernels read best


def machine_of(setup: Setup, *, num_rows: int, max_step_tokens: int, block_tokens: int = BLOCK_TOKENS,
               reading: str = "estimate", calibration: Calibration | None = None,
               host_bytes: int = 0) -> Machine:
    """A replica that runs at most num_rows sequences, and max_step_tokens tokens a step.

    reading: of READINGS, how long steps last. calibration: of estimates alone. host_bytes: of host memory for
    what the caches of all its devices have no room for, each copying its part over its own link. The context
    is not the model's but what memory holds: a workload is lengths. Pipeline stages hold equally many pages
    of the stage that has room for the fewest; groups that attend to different sequences lend one another
    theirs.
    ConfigError when nothing fits.
    """
    groups = setup.layout.groups
    each = -(-num_rows // groups)
    rooms = [replace(one, layout=plan_layout(one.stage.spec.cache(one.element_bytes),
                                             block_tokens=block_tokens)) for one in setup.rooms]
    room = min(rooms, key=lambda one: one.num_pages(each))
    pages = (room.num_pages(each) - 1) * groups + 1
    tokens = setup.max_tokens()
    if pages < 2 or tokens < 2:
        raise ConfigError(f"{setup.ask.model} on {setup.device.name} with {setup.layout.text()}: nothing is "
                          f"left for a cache beside the weights and {num_rows} sequences: use more devices, "
                          "smaller weights, or fewer sequences")
    host_pages, page_s = _host(setup, room.layout.page_bytes, host_bytes)
    price = setup.device.price_usd_per_hour
    given = setup.ask.price_usd_per_hour
    return Machine(
        name=f"{setup.ask.model} on {setup.device.name}, {replace(setup.layout, dp=1).text()}",
        capacity=Capacity(layout=room.layout, num_pages=pages, num_rows=num_rows, max_model_len=tokens,
                          max_step_tokens=max_step_tokens, vocab_size=setup.spec.vocab_size,
                          num_host_pages=host_pages),
        seconds=_seconds(setup, reading, calibration),
        floor=Steps(setup.deployment, estimate=False),
        num_devices=setup.layout.replica_devices, price_usd_per_hour=price if given is None else given,
        cache_bytes=lambda num_tokens: needed_cache_bytes(setup.spec, num_tokens, KV_BYTES[setup.ask.kv]),
        link_bytes_per_s=_link(setup) * setup.layout.replica_devices, page_s=page_s,
        waking=Waking() if calibration is None else calibration.waking)


def _host(setup: Setup, page_bytes: int, host_bytes: int) -> tuple[int, float]:
    """(pages of host memory, the null page included; seconds to copy one). A page is in parts on the devices
    of its group; the groups copy beside one another."""
    if not host_bytes:
        return 0, 0.0
    groups = setup.layout.groups
    size, rate = page_bytes * setup.layout.replica_devices // groups, setup.device.links.get("host")
    if host_bytes < 2 * size:
        raise ConfigError(f"--host-kv-bytes {host_bytes} is of no use: a page takes {size} and one is set "
                          f"aside, give at least {2 * size}, or 0")
    if rate is None:
        raise ConfigError(f"--host-kv-bytes: the link of {setup.device.name} to its host is not known")
    return host_bytes // size, page_bytes / rate / groups


def _seconds(setup: Setup, reading: str, calibration: Calibration | None) -> StepSeconds:
    if reading != "nominal":
        return Steps(setup.deployment, estimate=reading == "estimate", calibration=calibration)
    devices, rate = setup.layout.replica_devices, setup.numerics.rates.packed
    return NominalSteps(shape=setup.shape, weight_bytes=setup.numerics.weight_bytes,
                        cache_bytes=KV_BYTES[setup.ask.kv], bytes_per_s=devices * setup.device.bytes_per_s,
                        flops_per_s=devices * rate * setup.deployment.efficiency.prefill)


def _link(setup: Setup) -> float:
    """Bytes/s at which a device hands caches to another host: as asked, else its network; where none is
    known, the slot that a network card would be in, which is the most it could do."""
    links = setup.device.links
    return setup.ask.link_bytes_per_s or links.get("network") or links.get("host") or inf
