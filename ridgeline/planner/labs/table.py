"""The labs by group of the index: the four, the figures in their source's order, what goes with them."""

from ridgeline.planner.lab import Lab
from ridgeline.planner.labs.batching import BATCHING
from ridgeline.planner.labs.decode import BENDING, QUANTIZATION, SCALING, SPECULATION, WALL
from ridgeline.planner.labs.experts import EXPERTS
from ridgeline.planner.labs.image import IMAGE, PHOTOGRAPH
from ridgeline.planner.labs.kv_cache import KV_CACHE
from ridgeline.planner.labs.memory import MEMORY
from ridgeline.planner.labs.phases import PHASES
from ridgeline.planner.labs.serving import SERVING
from ridgeline.planner.labs.traffic import GOODPUT, SCHEDULING

GROUPS: dict[str, tuple[Lab, ...]] = {
    "Labs": (KV_CACHE, SERVING, BATCHING, IMAGE),
    "Figures, step by step": (*PHASES, *MEMORY, WALL, BENDING, GOODPUT, QUANTIZATION, SPECULATION, SCALING,
                              PHOTOGRAPH, SCHEDULING),
    "Beside them": (EXPERTS,)}
LABS = tuple(lab for labs in GROUPS.values() for lab in labs)
