"""The scheduling policies by name."""

from collections.abc import Callable

from ridgeline.base.table import Table
from ridgeline.schedule.policies.fcfs import FirstCome
from ridgeline.schedule.policies.policy import Policy
from ridgeline.schedule.policies.priority import Priority

POLICIES: Table[Callable[[], Policy]] = Table("policy", {"fcfs": FirstCome, "priority": Priority})
