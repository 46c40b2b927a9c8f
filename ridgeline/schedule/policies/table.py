"""The scheduling policies by name."""

from collections.abc import Callable

from ridgeline.base.errors import ConfigError
from ridgeline.base.table import Table
from ridgeline.schedule.policies.chunked import Chunked
from ridgeline.schedule.policies.fair import Fair
from ridgeline.schedule.policies.fcfs import FirstCome
from ridgeline.schedule.policies.policy import NO_NEEDS, Needs, Policy
from ridgeline.schedule.policies.prefill import PrefillFirst
from ridgeline.schedule.policies.priority import Priority
from ridgeline.schedule.policies.reuse import Reuse
from ridgeline.schedule.policies.shortest import Shortest
from ridgeline.schedule.policies.slo import Slo
from ridgeline.schedule.policies.static import Static
from ridgeline.schedule.policies.throughput import Throughput

POLICIES: Table[Callable[[str, Needs], Policy]] = Table("policy", {
    "static": lambda setting, needs: Static(),
    "fcfs": lambda setting, needs: FirstCome(),
    "continuous": lambda setting, needs: FirstCome(),  # what it is called beside static batching
    "prefill": lambda setting, needs: PrefillFirst(),
    "chunked": lambda setting, needs: Chunked(_tokens(setting)),
    "priority": lambda setting, needs: Priority(),
    "fair": lambda setting, needs: Fair(),
    "reuse": lambda setting, needs: Reuse(),
    "slo": lambda setting, needs: Slo(needs),
    "shortest": lambda setting, needs: Shortest(),
    "throughput": lambda setting, needs: Throughput(),
})
_SETTINGS = {"chunked": "chunked:512"}  # policies that take one, as they are written
_BY_PRIORITY = ("priority", "slo")


def make_policy(text: str, needs: Needs = NO_NEEDS) -> Policy:
    """The policy that `name` or `name:setting` names. ConfigError lists the names that exist."""
    name, colon, setting = text.partition(":")
    make = POLICIES[name]
    if bool(colon) and name not in _SETTINGS:
        raise ConfigError(f"the policy {name!r} takes no setting: leave out {colon + setting!r}")
    if name in _SETTINGS and not setting:
        raise ConfigError(f"the policy {name!r} needs a setting: write it like {_SETTINGS[name]}")
    return make(setting, needs)


def takes_priority(text: str) -> bool:
    """Whether the policy so written looks at a request's priority."""
    return text.partition(":")[0] in _BY_PRIORITY


def step_tokens(text: str) -> int:
    """The tokens of a step that the policy so written asks for; 0 where it asks for none."""
    name, _, setting = text.partition(":")
    return _tokens(setting) if name in _SETTINGS else 0


def _tokens(setting: str) -> int:
    if not setting.isdecimal() or int(setting) < 1:
        raise ConfigError(f"the policy 'chunked' takes tokens of a step, at least 1: {setting!r} is not that")
    return int(setting)
