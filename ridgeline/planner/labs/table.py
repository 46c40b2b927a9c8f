"""The labs in the order of their index: the four, then the figures."""

from ridgeline.planner.lab import Lab
from ridgeline.planner.labs.kv_cache import KV_CACHE
from ridgeline.planner.labs.serving import SERVING

LABS: tuple[Lab, ...] = (KV_CACHE, SERVING)
