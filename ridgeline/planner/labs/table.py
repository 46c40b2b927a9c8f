"""The labs in the order of their index: the four, then the figures in their source's order."""

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

LABS: tuple[Lab, ...] = (
    KV_CACHE, SERVING, BATCHING, IMAGE, *PHASES, *MEMORY, WALL, BENDING, GOODPUT, QUANTIZATION, SPECULATION,
    SCALING, EXPERTS, PHOTOGRAPH, SCHEDULING)
