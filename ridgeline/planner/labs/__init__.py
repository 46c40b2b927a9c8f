"""The labs: one `planner.lab.Lab` a page."""

from collections.abc import Mapping, Sequence

from ridgeline.planner.lab import Lab


def load_labs() -> Mapping[str, Sequence[Lab]]:
    """All labs by their group of the index. Imported here, not above: describing every model that they offer
    takes a third of a second, which a server need not spend before anybody looks."""
    from ridgeline.planner.labs.table import GROUPS

    return GROUPS
