"""The table of described families: model_type -> reader of its config."""

from collections.abc import Callable

from ridgeline.base.table import Table
from ridgeline.models.read import ConfigReader
from ridgeline.spec.model import ModelSpec

DESCRIBED: Table[Callable[[ConfigReader], ModelSpec]] = Table("described model family", {})
