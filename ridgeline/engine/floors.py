"""What the steps of an engine should take: this machine's profile, and the prices that follow from it.

Owns which profile an engine uses: the file of this machine's name, measured now where there is none. The
choice is said once. Knows no loop.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ridgeline.base.errors import ConfigError
from ridgeline.engine.adapters import Adapters
from ridgeline.engine.machine import machine_name
from ridgeline.engine.probe import QUICK, probe_gpu, probe_machine
from ridgeline.engine.startup import Startup
from ridgeline.ledger.account import Account
from ridgeline.ledger.deployment import Deployment, Rates
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.estimate import Estimate
from ridgeline.ledger.layout import Layout
from ridgeline.ledger.price import Price
from ridgeline.ledger.profile import MachineProfile, load_profile, profile_path, save_profile
from ridgeline.ledger.steps import Steps
from ridgeline.ledger.work import Product, Worker, alone, lines_of, whole
from ridgeline.schedule.records import Prices
from ridgeline.spec.model import ModelSpec


def _arithmetic(numerics: str) -> tuple[str, ...]:
    """What may serve a numeric path, by the names of a profile's rates: the fastest makes the floor."""
    known = {"float32": ("float32",), "bfloat16": ("float32", "bfloat16")}
    return known.get(numerics, ("float32", "bfloat16", "int8"))


def profile_name(threads: int) -> str:
    """The profile of this machine at a number of compute threads."""
    return f"{machine_name()}-{threads}-threads"


def machine_profile(threads: int, startup: Startup) -> MachineProfile:
    """This machine's profile from its file; without one it is measured now, in half a second, and saved.

    torch must run with that many threads already.
    """
    return _kept_profile(profile_name(threads), lambda name: probe_machine(name, effort=QUICK), startup)


def gpu_profile(device: torch.device, startup: Startup) -> MachineProfile:
    """The same of a GPU."""
    slug = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(device).lower()).strip("-")
    return _kept_profile(slug, lambda name: probe_gpu(name, device), startup)


def _kept_profile(name: str, measure: Callable[[str], MachineProfile], startup: Startup) -> MachineProfile:
    broken = ""
    if profile_path(name).is_file():
        try:
            profile = load_profile(name)
            startup.choose("profile", name, f"from {profile_path(name)}: {profile.text()}")
            return profile
        except ConfigError as error:
            broken = f" since {error}"
    profile = measure(name)
    try:
        saved = f"saved as {save_profile(profile)}"
    except OSError as error:
        saved = f"not saved ({error})"
    startup.choose("profile", name, f"measured now{broken}, {saved}: {profile.text()}")
    return profile


def step_key(spec: ModelSpec, numerics: str, price: Price) -> str:
    """The name of a step table in a profile: what the steps are made of, however the model is called."""
    read_bytes = int(price.moved(_Smallest())[0])
    return f"{spec.family}, {spec.num_params} parameters, {read_bytes} bytes a step, {numerics}"


def price_of(account: Account, numerics: str, profile: MachineProfile) -> Price:
    """Floors on one machine."""
    device = profile.hardware()
    return Price(account, device, flops_per_s=device.fastest(_arithmetic(numerics)))


def worker_of(spec: ModelSpec, account: Account, numerics: str, profile: MachineProfile) -> Worker:
    """The work of an engine's steps on its one device, for estimates."""
    device = profile.hardware()
    return alone(spec, account, device, Product(flops_per_s=device.fastest(_arithmetic(numerics))))


def steps_of(spec: ModelSpec, account: Account, numerics: str, profile: MachineProfile) -> Steps:
    """Expected seconds of an engine's steps, by the profile's calibration where it has one."""
    device = profile.hardware()
    rate = device.fastest(_arithmetic(numerics))
    deployment = Deployment(of_stages=lines_of([whole(spec, account)], Layout()), device=device,
                            rates=Rates(packed=rate, plain=rate), efficiency=Efficiency())
    return Steps(deployment, estimate=True, calibration=profile.calibration)


def describe(profile: MachineProfile, price: Price) -> dict[str, Any]:
    """The rates, and what they make of the smallest step (one token of one sequence), JSON-able."""
    smallest = _Smallest()
    return {
        "name": profile.name, "threads": profile.threads, "about": dict(profile.about),
        "read_bytes_per_s": profile.read_bytes_per_s, "flops_per_s": dict(profile.flops_per_s),
        "decode_read_bytes": int(price.moved(smallest)[0]), "decode_floor_s": price(smallest),
    }  # fmt: skip


class _Smallest:
    """A decode with nothing before it, as a step."""

    start = np.zeros(1, np.int32)
    count = np.ones(1, np.int32)
    num_sampled = 1


def prices_of(
    price: Price, profile: MachineProfile, key: str, adapters: Adapters | None = None
) -> Prices:
    """Floors, and expected times where the profile has this model's steps (`ridgeline bench probe`). A step
    reads each adapter of its rows once."""
    table = profile.tables.get(key)
    planned = None if table is None else Estimate(price, table)
    equal = lru_cache(1024)(price.request)  # requests of a batch that are equally long end in one step
    prices = Prices(step=price, request=equal, experts=price.experts, planned=planned)
    if adapters is None:
        return prices
    return replace(prices, adapter=lambda slot: adapters.num_bytes(slot) / profile.read_bytes_per_s)
