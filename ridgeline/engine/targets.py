"""From `ttft_s`, `tpot_s` and `overload` to what the scheduler makes of requests that are sure to be late."""

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.ledger.price import Price
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.overload import Mode, Overload
from ridgeline.schedule.policies.policy import Policy
from ridgeline.schedule.targets import Targets


def build_overload(
    config: EngineConfig, price: Price, capacity: Capacity, policy: Policy
) -> Overload | None:
    """What keeps the first target; ConfigError for a target that no request can meet here."""
    smallest = price.request(1, 0, 1)
    for flag, target_s in (("--ttft", config.ttft_s), ("--tpot", config.tpot_s)):
        if target_s is not None and target_s < smallest:
            raise ConfigError(
                f"{flag} {target_s * 1e3:g} ms is below what a single token must take on this machine: set "
                f"it above the floor of {smallest * 1e3:.3g} ms"
            )
    if config.ttft_s is None:
        if config.overload != "queue":
            raise ConfigError(f"--overload {config.overload} needs a deadline: set --ttft")
        return None
    layout = capacity.layout
    cut = any(group.state_pages for group in layout.groups)  # chunks end at marks, and leave room to others
    return Overload(
        mode=Mode(config.overload), targets=Targets(ttft_s=config.ttft_s, tpot_s=config.tpot_s), price=price,
        block_tokens=layout.block_tokens, passes=None if cut else policy.passes, by_tenant=policy.by_tenant,
    )  # fmt: skip
