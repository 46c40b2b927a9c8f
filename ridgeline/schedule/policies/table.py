"""The scheduling policies by name."""

from collections.abc import Callable

from ridgeline.base.errors import ConfigError
from ridgeline.base.table import Table
from ridgeline.schedule.policies.fcfs import FirstCome
from ridgeline.schedule.policies.policy import NO_NEEDS, Needs, Policy
from ridgeline.schedule.policies.priority import Priority

POLICIES: Table[Callable[[str, Needs], Policy]] = Table("policy", {
    "fcfs": lambda setting, needs: FirstCome(),
    "priority": lambda setting, needs: Priority(),
})
_SETTINGS: dict[str, str] = {}  # policies that take one, and what it is


def make_policy(text: str, needs: Needs = NO_NEEDS) -> Policy:
    """The policy that `name` or `name:setting` names. ConfigError lists the names that exist."""
    name, colon, setting = text.partition(":")
    make = POLICIES[name]
    if bool(colon) and name not in _SETTINGS:
        raise ConfigError(f"the policy {name!r} takes no setting: leave out {colon + setting!r}")
    return make(setting, needs)
