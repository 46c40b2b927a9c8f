"""Rotary embedding as data; the mathematics is in this room's module."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding of the first `rotary_dim` of each head, half-split pairs (i, i +
    rotary_dim/2).

    kind: "default", "linear", "dynamic", "llama3", "yarn", "longrope" or "proportional". factor and the
    fields below it are used by the kinds that need them (Su et al. 2021; Peng et al. 2023 for yarn; Ding et
    al. 2024 for longrope). attention_factor multiplies cos and sin; None means the kind's own default.
    original_max_position: the context before scaling. short_factor, long_factor: one number a pair.
    turning_pairs: the first so many of "proportional" turn, the others stand still (Gemma 4).
    """

    kind: str
    theta: float
    rotary_dim: int
    max_position: int
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    turning_pairs: int = 0

    def prompt_borders(self, max_model_len: int) -> Sequence[int]:
        """Ascending prompt lengths past which the keys of a prompt are rotated otherwise: two prompts may
        share cached keys only when no border is below the length of one and not of the other."""
        if self.kind == "longrope":
            return (self.original_max_position or self.max_position,)
        return range(self.max_position, max_model_len) if self.kind == "dynamic" else ()


def yarn_mscale(factor: float, mscale: float) -> float:
    """0.1 m ln f + 1 (Peng et al. 2023, section 3.4; m from DeepSeek-V2)."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def prompt_borders(spec: ModelSpec, max_model_len: int) -> tuple[int, ...]:
    """RopeSpec.prompt_borders of all of a model's blocks together; () for most models."""
    ropes = {getattr(block, "rope", None) for layer in spec.layers for _, block in layer.blocks}
    found = (rope.prompt_borders(max_model_len) for rope in ropes if isinstance(rope, RopeSpec))
    return tuple(sorted({border for borders in found for border in borders}))
