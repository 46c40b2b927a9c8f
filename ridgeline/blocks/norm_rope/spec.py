"""Rotary embedding as data; the mathematics is in this room's module."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding of the first `rotary_dim` of each head, half-split pairs (i, i +
    rotary_dim/2).

    kind: "default", "linear", "dynamic", "llama3", "yarn" or "longrope". factor and the fields below it are
    used by the kinds that need them (Su et al. 2021; Peng et al. 2023 for yarn; Ding et al. 2024 for
    longrope). attention_factor multiplies cos and sin; None means the kind's own default.
    original_max_position: the context before scaling. short_factor, long_factor: one number a pair.
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
