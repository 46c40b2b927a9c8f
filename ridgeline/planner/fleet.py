"""Engines beside one another, as people write them: "2@h100,tp=1" is two engines on an H100 each. Knows no
workload and no policy."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from ridgeline.base.errors import ConfigError
from ridgeline.planner.ask import Ask
from ridgeline.sim.cluster import Topology
from ridgeline.sim.node import Machine

_DEGREES = ("tp", "pp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal engines. gpu, degrees and price (USD of one device an hour): None where the flags of the whole
    run hold."""

    num: int
    gpu: str | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    price: float | None = None

    def ask(self, ask: Ask) -> Ask:
        """One of them, else as asked for the run; its own device has its own price."""
        given = {name: value for name in _DEGREES if (value := getattr(self, name)) is not None}
        if self.gpu is not None and self.gpu != ask.gpu:
            given |= {"gpu": self.gpu, "price_usd_per_hour": None}
        if self.price is not None:
            given["price_usd_per_hour"] = self.price
        return replace(ask, **given)


def parse_pool(text: str) -> Pool:
    """'4', '2@h100', '4@h20,tp=2' or '4@h20,price=1.2'."""
    head, *degrees = text.split(",")
    num, _, gpu = head.partition("@")
    given: dict[str, Any] = {}
    for name, _, value in (part.strip().partition("=") for part in degrees):
        read = {**dict.fromkeys(_DEGREES, int), "price": float}.get(name)
        try:
            given[name] = read(value) if read else 0
        except ValueError:
            given[name] = 0
        if not 0 < given[name] < inf:
            raise ConfigError(f"{text}: {name}={value} is not known of an engine: it takes "
                              f"{', '.join(f'{one}=N' for one in _DEGREES)}, price=USD")
    if not num.strip().isdecimal() or not int(num):
        raise ConfigError(f"{text}: it begins with how many engines there are: write it like 2, 2@h100 or "
                          "4@h20,tp=2")
    return Pool(num=int(num), gpu=gpu.strip() or None, **given)


def topology_of(ask: Ask, build: Callable[[Ask], Machine], *, replicas: int = 1, prefill: Pool | None = None,
                decode: Pool | None = None, router: str = "least-work") -> Topology:
    """Replicas of what is asked, or prefill and decode engines. ConfigError when only one side is given."""
    if (prefill is None) != (decode is None):
        raise ConfigError("--prefill and --decode go together: give both, or --replicas")
    if prefill is None or decode is None:
        return Topology(engines=(build(ask),) * replicas, router=router)
    if replicas > 1:
        raise ConfigError("--replicas and --prefill contradict one another: engines do all of a request, or "
                          "one part of it")
    return Topology(engines=(build(prefill.ask(ask)),) * prefill.num,
                    decode=(build(decode.ask(ask)),) * decode.num, router=router)
